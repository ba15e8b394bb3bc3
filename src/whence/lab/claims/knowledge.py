"""Claims know-1 to know-5, know-8 and know-9: what pretraining puts in, and what comes out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from whence.lab.claim import Claim, Measure, Setting, Verdict, judge
from whence.lab.claims.runs import answers, ask, corpus, strangers, trained
from whence.lab.svg import Bars, Figure, Line, Panel

GROUP = "Pretraining and knowledge"
SOURCE = "the results in the documents"
Records = Sequence[dict[str, Any]]
SHUFFLES = 2000


def percent(records: Records) -> float:
    return 100 * sum(bool(record["correct"]) for record in records) / max(1, len(records))


def known(records: Records) -> Records:
    """Those about people who are in the text: the others cannot be retrieved."""
    return [record for record in records if record["seen"] is not False]


def withheld(records: Records) -> Records:
    return [record for record in records if record["seen"] is False]


def difference(first: Records, second: Records) -> tuple[list[Measure], float]:
    """Two systems question by question, and the chance of such a difference between equals."""
    from whence.evaluate import paired

    wins, losses, chance = paired(first, second)
    chance = max(chance, 1e-9)  # below that it says no more
    return [
        Measure("questions that only the first got right", wins),
        Measure("questions that only the second got right", losses),
    ], chance


def london(setting: Setting) -> Records:
    from whence.evaluate import baseline

    return baseline("London", corpus(setting), "dev")


def london_for_everybody(generator: torch.Generator, setting: Setting) -> Verdict:
    records = london(setting)
    share = percent(records)
    if setting.corpus.startswith("course"):
        measures = [Measure("London for everybody, per cent of dev", share, "~", 5.0, 0.05)]
        return judge(measures, len(records), "25 of 500 people of the course's dev file.")
    measures = [Measure("London for everybody, per cent of dev", share)]
    condition = f"the people are the course's (in this corpus London gets {share:.1f} %)"
    return judge(
        measures, len(records), "The figure is one of the course's people.", condition=condition
    )


def without_pretraining(generator: torch.Generator, setting: Setting) -> Verdict:
    short, longer = answers("no-pretraining", setting), answers("questions-only", setting)
    everybody = percent(london(setting))
    measures = [
        Measure("no pretraining, 75 passes, per cent of dev", percent(short), "<=", everybody),
        Measure("no pretraining, as long as others, per cent", percent(longer), "<=", everybody),
        Measure("London for everybody, per cent", everybody),
    ]
    finding = (
        "The training questions say nothing about the people asked in dev: all that can be learned "
        "from them is which places are common, and one constant answer does that better."
    )
    return judge(measures, len(short), finding)


def with_pretraining(generator: torch.Generator, setting: Setting) -> Verdict:
    before, after = answers("questions-only", setting), answers("softmax", setting)
    counted, chance = difference(after, before)
    made_up = withheld(after)
    curve = [
        (point["step"], point["accuracy"])
        for point in trained("softmax", setting).metrics()
        if "accuracy" in point
    ]
    figure = Figure(
        "Right answers while the model reads: per cent of all dev questions, those about withheld "
        "people included.",
        [
            Panel(
                "Pretraining",
                "step",
                "per cent right",
                [Line([step for step, _ in curve], [value for _, value in curve])],
            )
        ],
    )
    measures = [
        Measure(
            "pretrained, per cent of the people in the text", percent(known(after)), ">=", 10.0
        ),
        Measure("without pretraining, the same people", percent(known(before))),
        *counted,
        Measure("chance of such a difference between equals, at most", chance, "<=", 1e-6),
    ]
    if made_up:
        measures.append(
            Measure("pretrained, per cent of the withheld people", percent(made_up), "<=", 10.0)
        )
    finding = (
        "The same questions, model and number of steps: what differs is whether it read the "
        "sentences. About people whose sentence was taken away it stays at guessing, so it is the "
        "text that it knows."
    )
    return judge(measures, len(after), finding, figure=figure)


def two_places(generator: torch.Generator, setting: Setting) -> Verdict:
    counts = {
        system: Counter(record["answer"] for record in answers(system, setting)).most_common()
        for system in ("no-pretraining", "questions-only", "softmax")
    }
    total = sum(count for _, count in counts["softmax"])

    def top(system: str) -> float:
        return 100 * sum(count for _, count in counts[system][:2]) / total

    longer = top("questions-only")
    measures = [
        Measure(
            "share of the two most frequent answers, 75 passes, per cent",
            top("no-pretraining"),
            ">=",
            50.0,
        ),
        Measure("different answers, 75 passes", len(counts["no-pretraining"])),
        Measure("share of the two most frequent, as long as the others", longer),
        Measure("different answers, as long as the others", len(counts["questions-only"])),
        Measure("share of the two most frequent, pretrained", top("softmax")),
        Measure("different answers, pretrained", len(counts["softmax"])),
    ]
    condition = "" if longer >= 50 else "training is short, as the course's 75 passes are"
    finding = (
        "Shortly trained, the model has learned a few beginnings of places and says them to "
        "everybody. Trained on, it learns the training people's places by heart and gives each "
        "stranger another of them (or a mixture): varied answers, and no more right ones."
    )
    if not setting.corpus.startswith("course"):  # its text stays where it is
        most = ", ".join(f"{place} ({count})" for place, count in counts["no-pretraining"][:3])
        finding += f" The most frequent after 75 passes: {most}, of {total}."
    return judge(measures, total, finding, condition=condition)


def synthesizer(generator: torch.Generator, setting: Setting) -> Verdict:
    mine, theirs = answers("synthesizer", setting), answers("softmax", setting)
    counted, chance = difference(mine, theirs)
    measures = [
        Measure(
            "synthesizer, per cent of the people in the text",
            percent(known(mine)),
            "<=",
            percent(known(theirs)),
        ),
        Measure("softmax, per cent of the people in the text", percent(known(theirs))),
        *counted,
        Measure("chance of such a difference between equals, at most", chance, "<=", 0.05),
    ]
    finding = (
        "Same text, same steps, same shell: without queries and keys less of what was read comes "
        "out."
    )
    return judge(measures, len(mine), finding)


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """The probability that a positive scores above a negative; ties count half."""
    ranked = sorted([(value, 1) for value in positive] + [(value, 0) for value in negative])
    total, start = 0.0, 0
    while start < len(ranked):
        end = start
        while end < len(ranked) and ranked[end][0] == ranked[start][0]:
            end += 1
        total += sum(label for _, label in ranked[start:end]) * (start + end + 1) / 2
        start = end
    wins = total - len(positive) * (len(positive) + 1) / 2
    return wins / (len(positive) * len(negative)) if positive and negative else math.nan


def telling_apart(generator: torch.Generator, setting: Setting) -> Verdict:
    records = answers("softmax", setting)
    retrieved = [
        float(record["probability"]) for record in records if record["seen"] and record["stated"]
    ]
    made_up = [float(record["probability"]) for record in withheld(records)]
    right = [float(record["probability"]) for record in records if record["correct"]]
    wrong = [float(record["probability"]) for record in records if not record["correct"]]
    edges = [step / 10 for step in range(11)]

    def shares(values: Sequence[float]) -> list[float]:
        counts = [0] * 10
        for value in values:
            counts[min(9, int(value * 10))] += 1
        return [count / max(1, len(values)) for count in counts]

    figure = Figure(
        "The model's own probability of its answer: people whose sentence it read, and people "
        "whose sentence was taken away.",
        [
            Panel("Read", "probability of the answer", "share", [Bars(edges, shares(retrieved))]),
            Panel("Withheld", "probability of the answer", "share", [Bars(edges, shares(made_up))]),
        ],
    )
    measures = [
        Measure(
            "AUROC of the answer's probability, in the text against withheld",
            auroc(retrieved, made_up),
            ">=",
            0.7,
        ),
        Measure(
            "AUROC of the answer's probability, right against wrong", auroc(right, wrong), ">=", 0.7
        ),
        Measure("people in the text", len(retrieved)),
        Measure("withheld people", len(made_up)),
    ]
    finding = (
        "The claim says that the output does not tell. Read as one answer, it does not; but the "
        "model's probability of its own answer, one number that any greedy decoding has at hand, "
        "separates the two groups far better than chance."
    )
    return judge(measures, len(records), finding, expected=False, figure=figure)


def agreement(
    first: Sequence[str], second: Sequence[str], generator: torch.Generator
) -> tuple[float, float, float]:
    """Per cent that agree; the same with one side shuffled; the chance of as many by shuffling."""
    ids = {value: number for number, value in enumerate(dict.fromkeys([*first, *second]))}
    left = torch.tensor([ids[value] for value in first])
    right = torch.tensor([ids[value] for value in second])
    hits = int((left == right).sum())
    shuffled = torch.tensor(
        [
            int((left[torch.randperm(len(left), generator=generator)] == right).sum())
            for _ in range(SHUFFLES)
        ]
    )
    chance = (1 + int((shuffled >= hits).sum())) / (1 + SHUFFLES)
    share = 100 / max(1, len(left))
    return share * hits, share * float(shuffled.double().mean()), chance


def similar_names(generator: torch.Generator, setting: Setting) -> Verdict:
    """Asks about people of whom no text speaks: strangers in the world, the withheld elsewhere."""
    from whence.evaluate import similar_name

    text = corpus(setting)
    missing = {record["name"] for record in withheld(answers("softmax", setting))}
    dev = text.questions("dev")
    read = [*text.questions("train"), *(q for q in dev if q.name not in missing)]
    if setting.corpus == "world":
        asked, origins = strangers(setting, 600)
    else:
        asked = [question for question in dev if question.name in missing]
        origins = {}
    said = ask("softmax", setting, asked)
    same, mixed, chance = agreement(said, similar_name(read)(asked), generator)
    measures = [
        Measure("answers that are the place of the most similar seen name, per cent", same),
        Measure("the same with the answers shuffled", mixed),
        Measure("chance of so many by shuffling", chance, "<=", 0.05),
    ]
    home, native = countries()
    placed = [
        (home[answer], native[origins[question.name]])
        for question, answer in zip(asked, said, strict=True)
        if answer in home and origins.get(question.name) in native
    ]
    if placed:
        same, mixed, chance = agreement([a for a, _ in placed], [b for _, b in placed], generator)
        measures += [
            Measure("answers in the country of the name's origin, per cent", same),
            Measure("the same with the answers shuffled, origin", mixed),
            Measure("chance of so many by shuffling, origin", chance, "<=", 0.05),
            Measure("answers that are a place at all, per cent", 100 * len(placed) / len(asked)),
        ]
    finding = (
        "About people it never read of, the model does not answer at random: the name alone pulls "
        "the answer towards the places of similar names. But it is a pull: most answers are others."
    )
    return judge(measures, len(asked), finding)


def countries() -> tuple[dict[str, str], dict[str, str]]:
    """City -> country and origin of names -> country, in the synthetic world's tables."""
    from whence.corpus.biography import tables

    names, _, places = tables()[:3]
    home = {city: country for country, cities in places.items() for city in cities}
    return home, {entry.origin: entry.country for entry in names}


def _claim(id: str, statement: str, run: Any) -> Claim:
    return Claim(id, GROUP, statement, SOURCE, run, "expensive")


CLAIMS = [
    _claim("know-1", "London for everybody gets 5.0 %.", london_for_everybody),
    _claim(
        "know-2",
        "Without pretraining the model fails, below London (0.6, 1.2, 1.8 %).",
        without_pretraining,
    ),
    _claim(
        "know-3",
        "Pretraining on text that holds the facts makes them accessible (18.8, 23.0, 26.6 %, "
        "always above 10 %).",
        with_pretraining,
    ),
    _claim(
        "know-4",
        "Without pretraining the model answers nearly always the same two places.",
        two_places,
    ),
    _claim("know-5", "The synthesizer, pretrained, does worse (7.0 %).", synthesizer),
    _claim(
        "know-8",
        "One cannot tell from the output whether an answer was retrieved or made up.",
        telling_apart,
    ),
    _claim(
        "know-9",
        "For an unseen name the model answers the place of similar seen names, or of the name's "
        "origin.",
        similar_names,
    ),
]
