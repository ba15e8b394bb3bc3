/* The list of questions: which system answered what, how surely, and whether it was right.
   Rows are drawn a page at a time as the reader scrolls, so thousands stay quick. */

import { element, swatch, whole } from "./charts.js";

const PAGE = 60;
const SHOWN_AT_FIRST = 2;

/** One row a question, with the answers of all systems beside each other. */
export function questionRows(series) {
  const rows = new Map();
  for (const system of series) {
    const asked = new Map(); // a question may be asked twice: the second time is another row
    for (const answer of system.answers) {
      const times = (asked.get(answer.question) ?? 0) + 1;
      asked.set(answer.question, times);
      const key = `${times} ${answer.question}`;
      if (!rows.has(key))
        rows.set(key, {
          position: rows.size,
          question: answer.question,
          name: answer.name,
          expected: answer.expected,
          stated: answer.stated,
          seen: answer.seen,
          answers: new Map(),
        });
      rows.get(key).answers.set(system.id, answer);
    }
  }
  return [...rows.values()];
}

/** The searchable, sortable list with its controls. */
export function questionList(series, best) {
  const answering = series.filter((system) => system.answers.length > 0);
  const rows = questionRows(answering);
  const state = {
    query: "",
    outcome: "all",
    knowledge: "any",
    shown: firstShown(answering, best),
    sort: { key: "position", descending: false },
    drawn: 0,
    found: rows,
  };

  const count = element("p", { class: "count", role: "status" });
  const head = element("thead");
  const body = element("tbody");
  const table = element("table", { class: "questions" }, head, body);
  const scroller = element("div", { class: "scroller", tabindex: 0, role: "region",
    "aria-label": "Questions and answers" }, table);
  const more = element("button", { type: "button", class: "more", click: () => draw(Infinity) },
    "Show all rows");

  const shown = () => answering.filter((system) => state.shown.has(system.id));

  function find() {
    const systems = shown();
    const wanted = state.query.toLowerCase().split(/\s+/).filter(Boolean);
    state.found = rows.filter(
      (row) =>
        outcomeHolds(row, systems, state.outcome) &&
        knowledgeHolds(row, state.knowledge) &&
        (wanted.length === 0 || includesAll(row, systems, wanted)),
    );
    const value = sortValue(state.sort.key);
    if (state.sort.key !== "position" || state.sort.descending) {
      const direction = state.sort.descending ? -1 : 1;
      // A row without a value stays at the end whichever way the list is sorted.
      state.found.sort((a, b) => {
        const [left, right] = [value(a), value(b)];
        if (left === null || right === null) return (left === null) - (right === null);
        return direction * (left < right ? -1 : left > right ? 1 : 0) || a.position - b.position;
      });
    }
    count.textContent = `${whole(state.found.length)} of ${whole(rows.length)} questions`;
    drawHead(systems);
    body.replaceChildren();
    state.drawn = 0;
    scroller.scrollTop = 0;
    draw(PAGE);
  }

  function draw(many) {
    const systems = shown();
    const marks = state.query.toLowerCase().split(/\s+/).filter(Boolean);
    const next = state.found.slice(state.drawn, state.drawn + many);
    body.append(...next.map((row) => questionRow(row, systems, marks)));
    state.drawn += next.length;
    if (state.drawn === 0)
      body.append(element("tr", {}, element("td", { colspan: 3 + systems.length, class: "none" },
        "No question fits. Take a filter away or search for less.")));
    more.hidden = state.drawn >= state.found.length;
  }

  function drawHead(systems) {
    const column = (key, title, attributes = {}, ...icon) => {
      const active = state.sort.key === key;
      const order = state.sort.descending ? "descending" : "ascending";
      const arrow = active ? (state.sort.descending ? " ↓" : " ↑") : "";
      return element("th", { scope: "col", "aria-sort": active ? order : "none", ...attributes },
        element("button", { type: "button", "data-key": key, click: () => sortBy(key) },
          ...icon, title, element("span", { "aria-hidden": "true" }, arrow)));
    };
    head.replaceChildren(element("tr", {},
      column("question", "Question"),
      column("expected", "Expected"),
      ...systems.map((system) => column(system.id, system.label,
        { "data-system": system.id, title: "sort by the probability of its answers" },
        swatch(system))),
      column("knowledge", "In the text", { title: "what the pretraining text holds on the person" }),
    ));
  }

  function sortBy(key) {
    const numeric = !["question", "expected", "position"].includes(key);
    if (state.sort.key !== key) state.sort = { key, descending: numeric };
    else if (state.sort.descending === numeric) state.sort = { key, descending: !numeric };
    else state.sort = { key: "position", descending: false };
    find();
    // The header was drawn anew: give the keyboard its place back.
    head.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  }

  const outcomes = element("div", { class: "segments", role: "group", "aria-label": "Outcome" });
  function drawOutcomes() {
    const several = state.shown.size > 1;
    const choices = [["all", "every outcome"], ["right", several ? "all right" : "right"],
      ["wrong", several ? "all wrong" : "wrong"], ...(several ? [["differ", "they differ"]] : [])];
    if (!choices.some(([key]) => key === state.outcome)) state.outcome = "all";
    outcomes.replaceChildren(...choices.map(([key, text]) =>
      element("button", { type: "button", "data-outcome": key,
        "aria-pressed": String(state.outcome === key),
        click: () => {
          state.outcome = key;
          for (const button of outcomes.children)
            button.setAttribute("aria-pressed", String(button.dataset.outcome === key));
          find();
        } }, text)));
  }

  const chips = element("div", { class: "chips", role: "group", "aria-label": "Systems shown" },
    ...answering.map((system) => element("button", {
      type: "button", class: "chip", "data-system": system.id, "data-choice": system.id,
      "aria-pressed": String(state.shown.has(system.id)),
      click: (event) => {
        if (!state.shown.delete(system.id)) state.shown.add(system.id);
        event.currentTarget.setAttribute("aria-pressed", String(state.shown.has(system.id)));
        drawOutcomes();
        find();
      } }, swatch(system), system.label)));

  const search = element("input", { type: "search", placeholder: "name, place or answer",
    "aria-label": "Search the questions", autocomplete: "off", spellcheck: "false",
    input: (event) => {
      state.query = event.target.value;
      find();
    } });

  const watch = new IntersectionObserver(
    (entries) => {
      if (entries.some((entry) => entry.isIntersecting) && state.drawn < state.found.length)
        draw(PAGE);
    },
    { root: scroller, rootMargin: "600px" },
  );
  const end = element("div", { class: "end" });
  scroller.append(end);
  watch.observe(end);
  // The observer speaks only when the end comes or goes; a quick scroll needs asking as well.
  scroller.addEventListener("scroll", () => {
    const left = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
    if (left < 600 && state.drawn < state.found.length) draw(PAGE);
  }, { passive: true });

  drawOutcomes();
  find();
  return element("div", { class: "question-list" },
    answering.length > 1 ? chips : null,
    element("div", { class: "controls" }, search, outcomes, knowledgeChoice(rows, (choice) => {
      state.knowledge = choice;
      find();
    }), count),
    scroller,
    more,
  );
}

/** The best system and its strongest contrast: the one that is right most differently. */
function firstShown(answering, best) {
  const chosen = new Set(best && answering.includes(best) ? [best.id] : []);
  const others = answering
    .filter((system) => !chosen.has(system.id))
    .sort((a, b) => a.baseline - b.baseline || (a.accuracy ?? 0) - (b.accuracy ?? 0));
  for (const system of others) if (chosen.size < SHOWN_AT_FIRST) chosen.add(system.id);
  return chosen;
}

function outcomeHolds(row, systems, outcome) {
  if (outcome === "all" || systems.length === 0) return true;
  const marks = systems.map((system) => row.answers.get(system.id)?.correct ?? null);
  if (outcome === "right") return marks.every((mark) => mark === true);
  if (outcome === "wrong") return marks.every((mark) => mark === false);
  return marks.includes(true) && marks.includes(false);
}

const KNOWLEDGE = {
  any: ["any knowledge", () => true],
  stated: ["stated in the text", (row) => row.stated === true],
  unstated: ["not stated", (row) => row.stated === false],
  seen: ["person seen", (row) => row.seen === true],
  unseen: ["person never seen", (row) => row.seen === false],
};

const knowledgeHolds = (row, choice) => KNOWLEDGE[choice][1](row);

/** A choice of what the text holds; only what occurs among the rows is offered. */
function knowledgeChoice(rows, choose) {
  const offered = Object.entries(KNOWLEDGE).filter(([, [, holds]]) => rows.some(holds));
  if (offered.length < 3) return null;
  return element("select", { "aria-label": "What the text holds", class: "knowledge-choice",
    change: (event) => choose(event.target.value) },
    ...offered.map(([key, [text]]) => element("option", { value: key }, text)));
}

function includesAll(row, systems, wanted) {
  const answers = systems.map((system) => row.answers.get(system.id)?.answer ?? "");
  const text = [row.question, row.expected ?? "", ...answers].join("\n").toLowerCase();
  return wanted.every((word) => text.includes(word));
}

function sortValue(key) {
  if (key === "position" || key === "question") return (row) => row[key];
  if (key === "expected") return (row) => row.expected;
  if (key === "knowledge")
    return (row) => (row.seen === null && row.stated === null ? null : row.seen + 2 * row.stated);
  return (row) => row.answers.get(key)?.probability ?? null;
}

function questionRow(row, systems, marks) {
  return element("tr", {},
    element("td", { class: "question" }, withName(row, marks)),
    element("td", { class: "expected", "data-label": "expected" }, visible(row.expected, marks, "not given")),
    ...systems.map((system) => answerCell(system, row, marks)),
    element("td", { class: "marks", "data-label": "in the text" }, knowledgeMarks(row)),
  );
}

/** The question with the person's name set off from the words around it. */
function withName({ question, name }, marks) {
  const at = name ? question.indexOf(name) : -1;
  if (at < 0) return marked(question, marks);
  return [
    element("span", { class: "around" }, marked(question.slice(0, at), marks)),
    element("span", { class: "name" }, marked(name, marks)),
    element("span", { class: "around" }, marked(question.slice(at + name.length), marks)),
  ];
}

function answerCell(system, row, marks) {
  const answer = row.answers.get(system.id);
  const label = { "data-label": system.label };
  if (!answer)
    return element("td", { class: "answer", ...label }, element("span", { class: "quiet" }, "–"));
  const { correct, probability } = answer;
  const outcome = correct === null ? "unmarked" : correct ? "right" : "wrong";
  const differs = answer.stated !== row.stated || answer.seen !== row.seen;
  return element("td", { class: `answer ${outcome}`, ...label },
    element("div", {},
      element("span", { class: "outcome", title: outcome, role: "img", "aria-label": outcome },
        { right: "✓", wrong: "✗", unmarked: "·" }[outcome]),
      element("span", { class: "text" }, visible(answer.answer, marks, "empty")),
      differs ? knowledgeMarks(answer) : null,
      probability === null ? null : element("span", { class: "sureness" },
        element("span", { class: "track", "aria-hidden": "true" },
          element("span", { class: "level",
            style: `width:${(100 * Math.min(1, Math.max(0, probability))).toFixed(1)}%` })),
        element("span", { class: "figure" }, probability.toFixed(2)))));
}

/** Shapes as well as words: a full circle is stated, a half one seen, an empty one never seen. */
function knowledgeMarks({ stated, seen }) {
  if (stated === true) return mark("●", "stated", "the answer stands in the pretraining text");
  if (seen === true)
    return stated === false
      ? mark("◐", "seen", "the person is in the pretraining text, the answer is not")
      : mark("◐", "seen", "the person is in the pretraining text");
  if (seen === false) return mark("○", "never seen", "no document of the person was trained on");
  if (stated === false) return mark("○", "not stated", "the answer is not in the text");
  return element("span", { class: "quiet" }, "–");
}

function mark(shape, word, title) {
  return element("span", { class: "mark", title },
    element("span", { "aria-hidden": "true" }, `${shape} `), word);
}

function visible(text, marks, instead) {
  if (text === null || text.trim() === "")
    return element("span", { class: "quiet" },
      text === null ? "–" : text === "" ? `(${instead})` : "(only blanks)");
  return marked(text, marks);
}

/** The text with every searched word marked. */
function marked(text, words) {
  if (words.length === 0) return [text];
  const lower = text.toLowerCase();
  // Where lower case changes the length (İ), places no longer correspond: leave it unmarked.
  if (lower.length !== text.length) return [text];
  const pieces = [];
  let from = 0;
  while (from < text.length) {
    const next = words
      .map((word) => [lower.indexOf(word, from), word.length])
      .filter(([at]) => at >= 0)
      .sort((a, b) => a[0] - b[0] || b[1] - a[1])[0];
    if (!next) break;
    pieces.push(text.slice(from, next[0]),
      element("mark", {}, text.slice(next[0], next[0] + next[1])));
    from = next[0] + next[1];
  }
  pieces.push(text.slice(from));
  return pieces;
}
