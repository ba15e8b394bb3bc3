"""The world: invented people whose every fact, mention and absence is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from whence.corpus.asked import AskedPeople
from whence.corpus.base import Document, Person, Question
from whence.corpus.biography import Biography, biographies
from whence.corpus.draw import Draw
from whence.corpus.questions import check_attributes, check_paraphrases
from whence.corpus.sentences import ATTRIBUTES, describe_life
from whence.corpus.splits import SPLITS, split_people
from whence.errors import WhenceError

SMALLEST, LARGEST = 200, 100_000


class WorldCorpus(AskedPeople):
    """Synthetic people from one seed, the same bytes on every machine.

    people       how many there are, 200 to 100,000
    seed         another seed is another world
    withhold     so many dev people have no document at all: answers about them are made up
    stated       the share of people in whose documents an asked attribute stands
    attributes   what is asked, any of sentences.ATTRIBUTES; the first one is the ledger's
    paraphrases  in how many forms each training question is asked; dev and test use the first
    rewrites     everybody is written about at least once and at most so often
    dev_share, test_share   the shares of people asked in dev and in test
    """

    name = "world"

    def __init__(
        self,
        people: int = 2_000,
        seed: int = 0,
        withhold: int = 0,
        stated: float = 0.96,
        attributes: Sequence[str] = ("birth place",),
        paraphrases: int = 1,
        rewrites: int = 1,
        dev_share: float = 0.2,
        test_share: float = 0.2,
    ) -> None:
        if not SMALLEST <= people <= LARGEST:
            raise WhenceError(f"a world has from {SMALLEST} to {LARGEST:,} people, not {people:,}")
        if seed < 0:
            raise WhenceError(f"the seed of a world must not be negative, {seed} is")
        if not 0 <= stated <= 1:
            raise WhenceError(f"stated must be a share from 0 to 1, not {stated}")
        if not 1 <= rewrites <= 8:
            raise WhenceError(f"rewrites must be from 1 to 8, not {rewrites}")
        self.size = people
        self.seed = seed
        self.stated_share = stated
        self.attributes = check_attributes(attributes, ATTRIBUTES)
        self.paraphrases = check_paraphrases(paraphrases, self.attributes)
        self.rewrites = rewrites
        self.splits = split_people(
            people, seed, dev_share=dev_share, test_share=test_share, withhold=withhold
        )

    @cached_property
    def biographies(self) -> Sequence[Biography]:
        """Everybody's facts, the withheld included."""
        return tuple(biographies(self.size, self.seed))

    @cached_property
    def _kept_back(self) -> Sequence[frozenset[str]]:
        """Per person the asked attributes that no document of theirs states."""
        hidden: list[set[str]] = [set() for _ in range(self.size)]
        for attribute in self.attributes:
            holders = [
                index for index, person in enumerate(self.biographies) if attribute in person.facts
            ]
            # Whether one attribute is stated must not depend on which others are asked.
            draw = Draw(self.seed, 20 + ATTRIBUTES.index(attribute))
            silent = len(holders) - int(len(holders) * self.stated_share + 0.5)
            for index in draw.shuffled(holders)[:silent]:
                hidden[index].add(attribute)
        return [frozenset(attributes) for attributes in hidden]

    @cached_property
    def _documents(self) -> Sequence[Document]:
        draw, draw_count = Draw(self.seed, 12), Draw(self.seed, 13)
        documents: list[Document] = []
        for index, person in enumerate(self.biographies):
            hidden = self._kept_back[index]
            stated = [attribute for attribute in self.attributes if attribute not in hidden]
            texts: dict[str, None] = {}
            for _ in range(1 + draw_count.below(self.rewrites)):
                texts |= dict.fromkeys(describe_life(draw, person, stated, hidden))
            if index not in self.splits.withheld:
                documents += [Document(text, person.name) for text in texts]
        return tuple(documents)

    @cached_property
    def _by_name(self) -> Mapping[str, int]:
        return {person.name: index for index, person in enumerate(self.biographies)}

    def documents(self) -> Sequence[Document]:
        return self._documents

    def everybody(self) -> Sequence[Biography]:
        return self.biographies

    def facts(self, name: str) -> Mapping[str, str]:
        """All that is true of a person: attribute to value."""
        return self.biographies[self._index(name)].facts

    def states(self, question: Question) -> bool:
        """Whether the answer to a question stands in a document of its person."""
        index = self._index(question.name)
        hidden = question.attribute in self._kept_back[index]
        if question.attribute not in self.attributes:
            raise WhenceError(f"{question.attribute!r} is not asked in this world")
        return not hidden and index not in self.splits.withheld

    def _index(self, name: str) -> int:
        if name not in self._by_name:
            raise WhenceError(f"nobody in this world is called {name!r}")
        return self._by_name[name]

    def people(self) -> Sequence[Person]:
        """The ledger; `stated` is about the first asked attribute."""
        mentions = Counter(document.name for document in self._documents)
        first = self.attributes[0]
        ledger = []
        for index, person in enumerate(self.biographies):
            count = mentions[person.name]
            withheld = index in self.splits.withheld
            stated = first not in self._kept_back[index] and not withheld
            asked = stated if first in person.facts else None
            ledger.append(Person(person.name, asked, count > 0, count, withheld, person.origin))
        return tuple(ledger)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "people": self.size,
            "seed": self.seed,
            "withhold": len(self.splits.withheld),
            "stated": self.stated_share,
            "attributes": list(self.attributes),
            "paraphrases": self.paraphrases,
            "rewrites": self.rewrites,
            "documents": len(self._documents),
            "characters": sum(len(document.text) + 1 for document in self._documents),
            "questions": {split: len(self.questions(split)) for split in SPLITS},
            "places": len({person.facts["birth place"] for person in self.biographies}),
        }
