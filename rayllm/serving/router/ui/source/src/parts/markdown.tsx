/** Markdown that a model wrote, which nobody trusts. */

import DOMPurify from "dompurify";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import MarkdownIt from "markdown-it";
import { useLayoutEffect, useRef } from "preact/hooks";

import { copy } from "./copy";

const LANGUAGES = { bash, cpp, css, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

// Characters; more takes longer to colour than it helps.
const MOST_COLOURED = 30_000;
/** Characters; more is shown as plain text, on request. */
export const MOST_RENDERED = 200_000;
// Of the page's time for rendering while an answer is written.
const SHARE = 0.25;

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: true, highlight: highlighted });
// An image would be a request to whoever the model names: its address stays, as a link.
markdown.disable("image");
markdown.core.ruler.push("adapted", (state) => {
  for (const token of state.tokens) {
    // Above them are the page's title and the speaker's name.
    if (token.type === "heading_open" || token.type === "heading_close") token.tag = `h${Math.min(6, Number(token.tag[1]) + 2)}`;
    // The page's policy allows no inline style.
    const style = token.attrGet("style")?.toString();
    if (style === undefined) continue;
    token.attrs = null;
    token.attrSet("class", style.includes("right") ? "right" : style.includes("center") ? "center" : "left");
  }
});

const purifier = DOMPurify(window);
purifier.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});
const ALLOWED = {
  ALLOWED_TAGS: (
    "p br hr h3 h4 h5 h6 strong em s a code pre span blockquote ul ol li table thead tbody tr th td"
  ).split(" "),
  ALLOWED_ATTR: ["href", "class", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true as const,
};

function highlighted(code: string, language: string): string {
  const isKnown = code.length <= MOST_COLOURED && hljs.getLanguage(language);
  return isKnown ? hljs.highlight(code, { language, ignoreIllegals: true }).value : "";
}

/** Safe nodes for a text. */
export function rendered(text: string): DocumentFragment {
  const fragment = purifier.sanitize(markdown.render(text), ALLOWED);
  for (const block of fragment.children) block.setAttribute("dir", "auto");
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  for (const table of fragment.querySelectorAll("table")) frame(table, "table", "Table");
  return fragment;
}

function frame(element: Element, kind: string, label: string): HTMLElement {
  const around = document.createElement("div");
  around.className = `framed ${kind}`;
  element.replaceWith(around);
  const scrolled = kind === "table" ? document.createElement("div") : element;
  if (kind === "table") scrolled.append(element);
  scrolled.setAttribute("tabindex", "0");
  scrolled.setAttribute("role", "region");
  scrolled.setAttribute("aria-label", label);
  around.append(scrolled);
  return around;
}

function frameCode(pre: Element): void {
  const language = /language-([\w+#.-]{1,20})/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  const around = frame(pre, "code", language ? `Code in ${language}` : "Code");
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language || "text";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small";
  button.textContent = "Copy";
  head.append(name, button);
  around.prepend(head);
  pre.setAttribute("dir", "ltr");
}

/** Show a text; while it grows, what has not changed stays, and rendering takes a fixed share of the time at most. */
export function Markdown({ text, isGrowing }: { text: string; isGrowing: boolean }) {
  const container = useRef<HTMLDivElement>(null);
  const pace = useRef({ latest: text, timer: 0, restUntil: 0 });
  pace.current.latest = text;

  useLayoutEffect(() => {
    const state = pace.current;
    const render = () => {
      const began = performance.now();
      state.timer = 0;
      if (container.current) update(container.current, rendered(state.latest));
      const ended = performance.now();
      state.restUntil = ended + (ended - began) * (1 / SHARE - 1);
    };
    const rest = isGrowing ? state.restUntil - performance.now() : 0;
    if (rest <= 0) {
      clearTimeout(state.timer);
      render();
    } else if (!state.timer) state.timer = window.setTimeout(render, rest);
  }, [text, isGrowing]);
  useLayoutEffect(() => () => clearTimeout(pace.current.timer), []);

  const onClick = (event: MouseEvent) => {
    const button = (event.target as Element).closest<HTMLButtonElement>(".code-head button");
    if (button) void copy(button.closest(".framed")?.querySelector("pre")?.textContent ?? "", button);
  };
  return <div class="markdown" ref={container} onClick={onClick} />;
}

function update(container: Element, fragment: DocumentFragment): void {
  const fresh = [...fragment.childNodes];
  let same = 0;
  for (let old = container.firstChild; old && fresh[same]?.isEqualNode(old); old = old.nextSibling) same += 1;
  while (container.childNodes.length > same) container.lastChild?.remove();
  container.append(...fresh.slice(same));
}
