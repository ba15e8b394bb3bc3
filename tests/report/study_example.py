"""A study with invented numbers about invented people, for the tests of the report."""

from __future__ import annotations

import math
import random
from typing import Any

CITIES = ("London", "Tarvik", "Oulonne", "Sambarro", "Keld", "New Ister", "Poriga", "Ahn-Dao")
FIRST = ("Ana", "Bero", "Chidi", "Dalia", "Emre", "Freya", "Goro", "Hana", "Ilya", "Jorun")
LAST = ("Abadi", "Borg", "Castan", "Dunmore", "Eriksen", "Fontal", "Gwen", "Hu", "Ito", "Juric")

TRAINED = (
    ("softmax-scratch", "softmax, no pretraining", "softmax", False, 0.06, 0.05),
    ("softmax", "softmax, pretrained", "softmax", True, 0.88, 0.09),
    ("rope", "rope, pretrained", "rope", True, 0.91, 0.08),
    ("rope-muon", "rope, pretrained, Muon", "rope", True, 0.93, 0.10),
    ("synthesizer", "synthesizer, pretrained", "synthesizer", True, 0.63, 0.07),
    ("perceiver", "perceiver, pretrained", "perceiver", True, 0.72, 0.08),
    ("linformer", "linformer, pretrained", "linformer", True, 0.69, 0.06),
    ("bigbird", "bigbird, pretrained", "bigbird", True, 0.84, 0.08),
    ("performer", "performer, pretrained", "performer", True, 0.55, 0.07),
)
BASELINES = (
    ("london", "always London", 0.05),
    ("most-common", "most common place", 0.07),
    ("neighbour", "nearest name", 0.11),
)

RECIPE = """seed = 0

[corpus]
name = "world"
people = 2000

[model]
layers = 4
heads = 8
width = 256
attention = "softmax"

[[stages]]
name = "pretrain"
seconds = 180

[[stages]]
name = "finetune"
epochs = 10
"""


def example_study(
    trained: int = 4, baselines: int = 3, questions: int = 500, points: int = 120, seed: int = 0
) -> dict[str, Any]:
    chance = random.Random(seed)
    people = [_person(chance, number) for number in range(questions)]
    systems = [_baseline(entry, people, chance) for entry in BASELINES[:baselines]]
    for index in range(trained):
        systems.append(_trained(TRAINED[index % len(TRAINED)], people, points, chance))
    return {
        "format": "whence-study/1",
        "title": "What pretraining is for",
        "command": "whence study recipes/quick.toml",
        "recipe": RECIPE,
        "seed": seed,
        "started": "2026-03-05T14:02:11+00:00",
        "seconds": 412.5,
        "machine": {"cpu": "Invented CPU at 2.4 GHz", "threads": 2},
        "versions": {"whence": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "commit": "abc1234"},
        "corpus": {
            "name": "world",
            "documents": 4211,
            "characters": 612_340,
            "questions": {"train": 1500, "dev": questions, "test": 500},
        },
        "split": "dev",
        "systems": systems,
    }


def _person(chance: random.Random, number: int) -> dict[str, Any]:
    name = f"{chance.choice(FIRST)} {chance.choice(LAST)} {number}"
    stated, seen = chance.choices(
        [(True, True), (False, True), (False, False)], weights=[0.7, 0.18, 0.12]
    )[0]
    weights = [1 / (rank + 1) for rank in range(len(CITIES))]
    return {
        "question": f"Where was {name} born?",
        "name": name,
        "expected": chance.choices(CITIES, weights)[0],
        "stated": stated,
        "seen": seen,
    }


def _answers(
    people: list[dict[str, Any]], known: float, guessed: float, sure: bool, chance: random.Random
) -> list[dict[str, Any]]:
    answers = []
    for person in people:
        correct = chance.random() < (known if person["stated"] else guessed)
        others = [city for city in CITIES if city != person["expected"]]
        probability = chance.betavariate(6, 1.5) if correct else chance.betavariate(2, 3)
        answers.append(
            {
                **person,
                "answer": person["expected"] if correct else chance.choice(others),
                "correct": correct,
                "probability": round(probability, 4) if sure else None,
            }
        )
    return answers


def _result(answers: list[dict[str, Any]]) -> dict[str, Any]:
    total = len(answers)
    correct = sum(answer["correct"] for answer in answers)
    share = correct / total if total else 0.0
    half = 1.96 * math.sqrt(share * (1 - share) / total) if total else 0.0
    return {
        "correct": correct,
        "total": total,
        "accuracy": round(100 * share, 2),
        "interval": [round(100 * max(0, share - half), 2), round(100 * min(1, share + half), 2)],
        "answers": answers,
    }


def _baseline(
    entry: tuple[str, str, float], people: list[dict[str, Any]], chance: random.Random
) -> dict[str, Any]:
    name, label, share = entry
    return {
        "name": name,
        "label": label,
        "kind": "baseline",
        "attention": None,
        "pretrained": None,
        "parameters": 0,
        "seconds": 0.0,
        "characters": 0,
        "characters_per_second": 0.0,
        "run": None,
        "config": None,
        "describe": {},
        "curve": [],
        "loss": [],
        **_result(_answers(people, share, share, False, chance)),
    }


def _trained(
    entry: tuple[str, str, str, bool, float, float],
    people: list[dict[str, Any]],
    points: int,
    chance: random.Random,
) -> dict[str, Any]:
    name, label, attention, pretrained, known, guessed = entry
    result = _result(_answers(people, known, guessed, True, chance))
    pace = chance.uniform(0.11, 0.17)
    stages = [("pretrain", 1500), ("finetune", 400)] if pretrained else [("finetune", 400)]
    loss: list[dict[str, Any]] = []
    curve: list[dict[str, Any]] = []
    done = 0
    for stage, steps in stages:
        every = max(1, steps // max(1, points))
        for step in range(every, steps + 1, every) if points else ():
            value = 0.35 + 3.2 * math.exp(-4 * step / steps) if stage == "pretrain" else 0.0
            value = value or 0.02 + 1.6 * math.exp(-6 * step / steps)
            at = {"step": done + step, "seconds": round((done + step) * pace, 2), "stage": stage}
            loss.append({**at, "loss": value * math.exp(chance.gauss(0, 0.08))})
            if stage == "finetune" and step % (every * max(1, points // 10)) == 0:
                risen = result["accuracy"] * (1 - math.exp(-5 * step / steps))
                curve.append({**at, "accuracy": max(0.0, risen + chance.gauss(0, 0.6))})
        done += steps
    if curve:
        curve[-1]["accuracy"] = result["accuracy"]
    characters = done * 64 * 110
    seconds = round(done * pace, 1)
    return {
        "name": name,
        "label": label,
        "kind": "trained",
        "attention": attention,
        "pretrained": pretrained,
        "parameters": 3_323_392,
        "seconds": seconds,
        "characters": characters,
        "characters_per_second": round(characters / seconds, 1),
        "run": f"runs/{name}",
        "config": RECIPE.replace('"softmax"', f'"{attention}"'),
        "describe": {
            "attention": {"mechanism": attention, "form": "fused kernel", "causal": True},
            "compiled": True,
            "optimizers": ["adamw"],
            "stages": {stage: {"steps": steps} for stage, steps in stages},
        },
        "curve": curve,
        "loss": loss,
        **result,
    }
