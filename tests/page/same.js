// A function of [[text, HTML]...]: what Markdown makes of each text, and the reference, as trees of the same form.
async (examples) => {
  const { render } = await import("/page/markdown.js");
  const resolved = (url) => {
    if (URL.canParse(url)) return new URL(url).href;
    try { return encodeURI(decodeURI(url)); } catch { return url; }
  };
  const address = (node) => resolved(node.getAttribute("href") ?? node.title.split(" \u00b7 ").at(-1));
  const pre = (language, text) => `<pre ${language}>${text.replace(/\n$/, "")}</pre>`;
  const ours = (node, inside) => {
    const name = node.className;
    if (name === "md-code") return pre(node.querySelector(".md-language").textContent, node.querySelector("code").textContent);
    if (["md-table", "md-part", "md-section"].includes(name)) return inside();
    if (node.localName === "p" && node.parentNode.localName === "li" && !node.parentNode.parentNode.classList.contains("md-loose")) return inside();
    if (node.classList.contains("md-image")) return `<img ${address(node)} ${node.textContent === "image" ? "" : node.textContent}>`;
    return node.localName === "a" || name === "md-refused" ? `<a ${address(node)}>${inside()}</a>` : null;
  };
  const theirs = (node, inside) => {
    if (node.localName === "pre") return pre(node.firstElementChild.className.replace("language-", ""), node.textContent);
    if (node.localName === "img") return `<img ${resolved(node.getAttribute("src"))} ${node.alt}>`;
    return node.localName === "a" ? `<a ${address(node)}>${inside()}</a>` : null;
  };
  const tree = (node, rule) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    const inside = () => [...node.childNodes].map((one) => tree(one, rule)).join("");
    const start = node.localName === "ol" && node.start !== 1 ? ` ${node.start}` : "";
    return rule(node, inside) ?? `<${node.localName}${start}>${inside()}</${node.localName}>`;
  };
  const BLOCK = / ?(<\/?(?:p|li|ul|ol|blockquote|h\d|hr|pre|table|thead|tbody|tr|td|th|br)(?: \d+)?>) ?/g;
  const form = (root, rule) => [...root.childNodes].map((one) => tree(one, rule)).join("").replace(/\s+/g, " ").replace(BLOCK, "$1").trim();
  return examples.map(([text, html]) => {
    const element = document.createElement("div");
    render(element, text);
    return [form(element, ours), form(new DOMParser().parseFromString(html, "text/html").body, theirs)];
  });
}
