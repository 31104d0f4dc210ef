/** Character references: those of numbers, and the names that people write. Other names stay as they are written. */

const PAIRS =
  "amp & lt < gt > quot \" apos ' nbsp \u00a0 copy © reg ® trade ™ hellip … mdash — ndash – lsquo ‘ rsquo ’ sbquo ‚ ldquo “ rdquo ” bdquo „ " +
  "laquo « raquo » lsaquo ‹ rsaquo › bull • middot · sect § para ¶ dagger † Dagger ‡ deg ° plusmn ± times × divide ÷ frac12 ½ frac14 ¼ " +
  "frac34 ¾ sup1 ¹ sup2 ² sup3 ³ micro µ euro € pound £ yen ¥ cent ¢ iexcl ¡ iquest ¿ szlig ß auml ä ouml ö uuml ü Auml Ä Ouml Ö Uuml Ü " +
  "aacute á eacute é iacute í oacute ó uacute ú agrave à egrave è ograve ò acirc â ecirc ê icirc î ocirc ô ucirc û ccedil ç ntilde ñ " +
  "aring å Aring Å aelig æ AElig Æ oslash ø Oslash Ø larr ← uarr ↑ rarr → darr ↓ harr ↔ lArr ⇐ rArr ⇒ hArr ⇔ le ≤ ge ≥ ne ≠ asymp ≈ " +
  "equiv ≡ infin ∞ sum ∑ prod ∏ int ∫ radic √ part ∂ nabla ∇ isin ∈ notin ∉ cap ∩ cup ∪ sub ⊂ sup ⊃ and ∧ or ∨ forall ∀ exist ∃ empty ∅ " +
  "minus − alpha α beta β gamma γ delta δ epsilon ε theta θ lambda λ mu μ pi π rho ρ sigma σ tau τ phi φ chi χ psi ψ omega ω Gamma Γ " +
  "Delta Δ Theta Θ Lambda Λ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω check ✓ cross ✗ star ☆ starf ★ hearts ♥";
/** @type {Map<string, string>} */
const NAMES = new Map(PAIRS.match(/\S+ [^ ]/g).map((pair) => /** @type {[string, string]} */ (pair.split(" "))));

/** Matches one reference where its `lastIndex` stands. */
export const REFERENCE = /&(?:#[xX]([0-9a-fA-F]{1,6})|#(\d{1,7})|([a-zA-Z][a-zA-Z0-9]{1,31}));/y;
const IN_TEXT = /\\([!-/:-@[-`{-~])|&(?:#[xX]([0-9a-fA-F]{1,6})|#(\d{1,7})|([a-zA-Z][a-zA-Z0-9]{1,31}));/g;

/**
 * The text that a match of REFERENCE stands for; null for a name that nobody knows.
 * @param {string | undefined} hex
 * @param {string | undefined} decimal
 * @param {string | undefined} name
 * @returns {string | null}
 */
export function resolve(hex, decimal, name) {
  if (name !== undefined) return NAMES.get(name) ?? null;
  const code = hex !== undefined ? parseInt(hex, 16) : parseInt(decimal, 10);
  const exists = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return exists ? String.fromCodePoint(code) : "\ufffd";
}

/**
 * Text without backslashes before punctuation and with its references resolved, as in an address.
 * @param {string} text
 * @returns {string}
 */
export function unescape(text) {
  return text.replace(IN_TEXT, (whole, escaped, hex, decimal, name) => escaped ?? resolve(hex, decimal, name) ?? whole);
}
