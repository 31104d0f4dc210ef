/**
 * An answer held against a JSON Schema, for the person who reads it: types, properties, items, enums and bounds.
 *
 * The server has every keyword; what is not known here is left out, and told as such.
 */

const KNOWN = new Set(
  "$schema $id $ref $defs definitions title description default examples type enum const properties required additionalProperties items minItems maxItems minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum pattern anyOf oneOf allOf not".split(" "),
);
const MAX_DEPTH = 60;
const SIMPLE = /^[\w\s^$|()[\]{}.,:/+*?\\-]{0,80}$/;

/**
 * Check a text.
 *
 * @returns {{ ok: boolean, reason: string, unknown: string[] }} `unknown`: keywords that were not looked at
 */
export function checkAnswer(text, schema) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return { ok: false, reason: "The answer is no JSON.", unknown: [] };
  }
  const unknown = new Set();
  const reason = wrong(value, schema, schema, "answer", unknown, 0);
  return { ok: !reason, reason, unknown: [...unknown].sort() };
}

/** Say what is wrong with a value; empty for nothing. */
function wrong(value, schema, root, path, unknown, depth) {
  if (schema === true || depth > MAX_DEPTH) return "";
  if (schema === false) return `${path}: is not allowed.`;
  if (schema === null || typeof schema !== "object") return "";
  for (const name of Object.keys(schema)) if (!KNOWN.has(name)) unknown.add(name);
  if (schema.$ref) return wrong(value, resolve(schema.$ref, root), root, path, unknown, depth + 1);
  return (
    wrongKind(value, schema, path) ||
    wrongBounds(value, schema, path) ||
    wrongParts(value, schema, root, path, unknown, depth) ||
    wrongChoice(value, schema, root, path, unknown, depth)
  );
}

function resolve(reference, root) {
  if (!reference.startsWith("#")) return true;
  const names = reference.slice(1).split("/").filter(Boolean).map((one) => decodeURIComponent(one).replaceAll("~1", "/").replaceAll("~0", "~"));
  return names.reduce((found, name) => (found !== null && typeof found === "object" ? found[name] : undefined), root) ?? true;
}

function kindOf(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return typeof value === "number" && Number.isInteger(value) ? "integer" : typeof value;
}

function wrongKind(value, schema, path) {
  const kind = kindOf(value);
  const kinds = schema.type === undefined ? null : [schema.type].flat();
  if (kinds && !kinds.includes(kind) && !(kind === "integer" && kinds.includes("number"))) return `${path}: expected ${kinds.join(" or ")}, found ${kind}.`;
  if (schema.enum && !schema.enum.some((one) => isSame(one, value))) return `${path}: is none of the values allowed.`;
  if ("const" in schema && !isSame(schema.const, value)) return `${path}: is not ${JSON.stringify(schema.const)}.`;
  return "";
}

const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function wrongBounds(value, schema, path) {
  if (typeof value === "number") {
    if (value < (schema.minimum ?? -Infinity) || value <= (schema.exclusiveMinimum ?? -Infinity)) return `${path}: is too small.`;
    if (value > (schema.maximum ?? Infinity) || value >= (schema.exclusiveMaximum ?? Infinity)) return `${path}: is too large.`;
  }
  const size = typeof value === "string" ? [...value].length : Array.isArray(value) ? value.length : null;
  if (size === null) return "";
  const [least, most] = typeof value === "string" ? [schema.minLength, schema.maxLength] : [schema.minItems, schema.maxItems];
  if (size < (least ?? 0)) return `${path}: is too short.`;
  if (size > (most ?? Infinity)) return `${path}: is too long.`;
  // other patterns could take for ever here; the server has checked them
  if (typeof value === "string" && schema.pattern && SIMPLE.test(schema.pattern) && !/[*+}]\)?[*+{]/.test(schema.pattern) && value.length < 200) {
    if (!matches(schema.pattern, value)) return `${path}: does not fit the pattern.`;
  }
  return "";
}

function matches(pattern, value) {
  try {
    return new RegExp(pattern, "u").test(value);
  } catch {
    return true;
  }
}

function wrongParts(value, schema, root, path, unknown, depth) {
  if (Array.isArray(value)) {
    for (const [at, one] of value.entries()) {
      const reason = wrong(one, schema.items ?? true, root, `${path}[${at}]`, unknown, depth + 1);
      if (reason) return reason;
    }
    return "";
  }
  if (value === null || typeof value !== "object") return "";
  for (const name of schema.required ?? []) if (!Object.hasOwn(value, name)) return `${path}: lacks ${name}.`;
  for (const [name, one] of Object.entries(value)) {
    const own = Object.hasOwn(schema.properties ?? {}, name);
    const reason = wrong(one, own ? schema.properties[name] : (schema.additionalProperties ?? true), root, `${path}.${name}`, unknown, depth + 1);
    if (reason) return reason;
  }
  return "";
}

function wrongChoice(value, schema, root, path, unknown, depth) {
  const fits = (one) => !wrong(value, one, root, path, unknown, depth + 1);
  for (const one of schema.allOf ?? []) {
    const reason = wrong(value, one, root, path, unknown, depth + 1);
    if (reason) return reason;
  }
  if (schema.anyOf && !schema.anyOf.some(fits)) return `${path}: fits none of the choices.`;
  if (schema.oneOf && schema.oneOf.filter(fits).length !== 1) return `${path}: does not fit exactly one of the choices.`;
  return schema.not !== undefined && fits(schema.not) ? `${path}: is what it must not be.` : "";
}
