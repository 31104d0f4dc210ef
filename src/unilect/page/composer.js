/** The composer: where a person writes to the models, attaches images, and stops them. */

import { grouped } from "./answer.js";
import { said } from "./conversation.js";
import { h, signal } from "./view.js";

const LONG = 20_000; // characters that fill the field, whatever they are
/** Characters of a pasted text that is attached: the browser lays the field out for seconds where there are some millions. */
const MANY = 100_000;
const MAX_IMAGE_BYTES = 12 * 1024 * 1024;
/** What is written and attached, and not said yet: it is there again behind a look at another view. */
const [images, texts] = [signal([]), signal([])];
let draft = "";

/**
 * Show the composer.
 *
 * @param isRunning says if an answer is on its way
 * @param onSay is given what is said: its text, of which so much was pasted, and images (data URLs)
 * @param onStop stops the answers
 */
export function composerView(isRunning, onSay, onStop) {
  const trouble = signal("");
  const field = h("textarea", {
    id: "composer",
    rows: 1,
    value: draft,
    placeholder: matchMedia("(hover: hover) and (width > 40rem)").matches ? "Ask anything. Enter sends, Shift+Enter begins a line." : "Ask anything",
    "aria-label": "Your message",
    oninput: () => {
      draft = field.value;
      fit(field);
    },
    onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) say(event);
      if (event.key === "Escape" && isRunning()) onStop();
    },
    onpaste: (event) => {
      attach(event.clipboardData.files);
      const text = event.clipboardData.getData("text/plain");
      if (text.length < MANY) return;
      event.preventDefault();
      texts.value = [...texts.peek(), text];
    },
  });
  const picker = h("input", { type: "file", accept: "image/*", multiple: true, hidden: true, "aria-label": "Images", onchange: () => attach(picker.files) });

  async function attach(files) {
    for (const file of files) {
      if (!file.type.startsWith("image/")) trouble.value = `${file.name} is no image.`;
      else if (file.size > MAX_IMAGE_BYTES) trouble.value = `${file.name} has more than 12 MB.`;
      else {
        const image = await readImage(file);
        images.value = [...images.peek(), image]; // others may have come meanwhile
      }
    }
    picker.value = "";
  }

  function say(event) {
    event.preventDefault();
    const text = field.value.trim();
    const message = { ...said(text, texts.peek().join("\n\n")), images: images.peek() };
    if (isRunning() || (!message.content && !message.images.length)) return;
    draft = field.value = "";
    fit(field);
    images.value = [];
    texts.value = [];
    trouble.value = "";
    onSay(message);
  }

  queueMicrotask(() => {
    if (draft) fit(field);
    if (matchMedia("(hover: hover)").matches) field.focus();
  });
  return h(
    "form.composer",
    { onsubmit: say, ondragover: (event) => hasFiles(event) && event.preventDefault(), ondrop: (event) => hasFiles(event) && (event.preventDefault(), attach(event.dataTransfer.files)) },
    () => trouble.value && h("p.notice.bad", { role: "alert" }, trouble.value),
    () => attachedView(images, "image", (url) => h("img.attached.small", { src: url, alt: "An image to send" })),
    () => attachedView(texts, "text", (text) => `Pasted: ${grouped(text.length)} characters`),
    h(
      "div.row.bottom",
      {},
      picker,
      h("button.quiet", { type: "button", title: "Attach images", "aria-label": "Attach images", onclick: () => picker.click() }, "+"),
      field,
      () => (isRunning() ? h("button.stop", { type: "button", onclick: () => (onStop(), field.focus()) }, "Stop") : h("button.primary", { type: "submit" }, "Send")),
    ),
  );
}

/** Say if files are dragged: a text that is dragged goes where it is dropped. */
const hasFiles = (event) => event.dataTransfer.types.includes("Files");

/** Show what is attached, each with a button that removes it. */
function attachedView(all, kind, show) {
  const row = (one, at) => {
    const onclick = () => (all.value = all.peek().toSpliced(at, 1));
    return h("span.attachment", {}, show(one), h("button.quiet.small", { type: "button", "aria-label": `Remove the ${kind}`, onclick }, "×"));
  };
  return all.value.length > 0 && h("div.row", {}, all.value.map(row));
}

/** Make the field as high as its text, up to a part of the window. */
function fit(field) {
  const most = innerHeight * 0.4;
  field.style.height = "auto";
  field.style.height = `${field.textLength > LONG ? most : Math.min(field.scrollHeight + 2, most)}px`;
}

function readImage(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(file);
  });
}
