/* What the page does when it is touched: copying, saving, fitting to a width, highlighting. */

import { element } from "./charts.js";

export function copyButton(text, title) {
  return element("button", { type: "button", class: "copy", click: async (event) => {
    const button = event.currentTarget;
    button.textContent = (await copy(text())) ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = title), 1500);
  } }, title);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // An older browser, or one that gives a local file no clipboard: the way of before.
    const area = element("textarea", { class: "offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function saveJson(study) {
  const address = URL.createObjectURL(
    new Blob([JSON.stringify(study, null, 1)], { type: "application/json" }));
  element("a", { href: address, download: "study.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Draw into `holder` at its width, and again whenever the width changes; returns the drawing. */
export function fit(holder, draw, highlight = null) {
  let width = 0;
  const now = () => {
    if (width === 0) return;
    holder.replaceChildren(draw(width));
    highlight?.again();
  };
  new ResizeObserver(([entry]) => {
    const next = Math.floor(entry.contentRect.width);
    if (next === width || next === 0) return;
    width = next;
    now();
  }).observe(holder);
  return now;
}

/** Pointing at (or tabbing to) anything of a system lights it everywhere; pressing pins it. */
export function linkHighlights(root) {
  let pinned = null;
  let current = null;
  const draw = () => {
    root.classList.toggle("highlighting", current !== null);
    for (const node of root.querySelectorAll("[data-system]"))
      node.classList.toggle("lit", node.dataset.system === current);
    for (const node of root.querySelectorAll("[data-pin]"))
      node.setAttribute("aria-pressed", String(node.dataset.pin === pinned));
  };
  const show = (id) => {
    if ((id ?? pinned) === current) return;
    current = id ?? pinned;
    draw();
  };
  const over = (event) => show(event.target.closest?.("[data-system]")?.dataset.system ?? null);
  root.addEventListener("pointerover", (event) => {
    if (!event.target.closest?.(".chart svg")) over(event); // a chart speaks for itself
  });
  root.addEventListener("pointerleave", () => show(null));
  root.addEventListener("focusin", (event) => {
    if (event.target.matches(":focus-visible")) over(event);
  });
  root.addEventListener("click", (event) => {
    const pin = event.target.closest?.("[data-pin]");
    if (!pin) return;
    pinned = pinned === pin.dataset.pin ? null : pin.dataset.pin;
    current = pinned;
    draw();
  });
  root.addEventListener("redrawn", draw); // a table has new rows, which know of no pin
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pinned = current = null;
    draw();
  });
  return { show, again: draw };
}
