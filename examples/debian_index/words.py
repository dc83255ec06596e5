"""Features of the packages: words of their descriptions, tf-idf, hashed to signed buckets.

Per binary package: the words of the short and long description, without its own name, its source's name, the parts of
both, and every word that names a section of the archive, whichever package it occurs in. So neither a name
(lib*, *-dev, python3-*) nor the word of the label reaches the features, and leaving a word out reveals nothing about
the label. A word counts if MIN_SOURCES source packages use it:

    value = (1 + ln tf) * ln(num_sources / source_df);   bucket, sign = 7 bits and 1 bit of blake2b(word)

Rows are L2-normalised and rounded to multiples of QUANTUM, which halves the packed file and costs nothing in
accuracy. Source packages have no description in the index: their rows are zero, message passing fills them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from debian_index.control import Binary

MIN_SOURCES = 3
QUANTUM = 1 / 128

_WORD = re.compile(r"[a-z][a-z0-9+#]+")


def words(text: str) -> list[str]:
    """Words of a text in order: lower case, a letter and then letters, digits, + or #; two characters or more."""
    return _WORD.findall(text.lower())


def words_of_package(binary: Binary, description: str, banned: frozenset[str]) -> Counter[str]:
    """Count the words of a package's description that may become features.

    Args:
      binary: the package; its name, its source's name and their parts are left out.
      description: the text to read.
      banned: words left out of every package.
    """
    own = {*words(binary.name), *words(binary.source)}
    return Counter(word for word in words(description) if word not in own and word not in banned)


def section_words(sections: Iterable[str]) -> frozenset[str]:
    """Words that occur in the name of a section ("gnu-r" -> gnu; "python" -> python)."""
    return frozenset(word for section in sections for word in words(section))


def bucket_and_sign(word: str, dim: int) -> tuple[int, int]:
    """Bucket 0 .. dim - 1 and sign (-1 or 1) of a word; stable across machines and Python versions."""
    digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
    return (digest >> 1) % dim, 1 if digest & 1 else -1


def hashed_tfidf(
    binaries: list[Binary], descriptions: list[str], *, dim: int, banned: frozenset[str], min_sources: int = MIN_SOURCES
) -> np.ndarray:
    """Feature rows of the binary packages.

    Args:
      binaries: the packages, in the order of the rows.
      descriptions: one text per package.
      dim: number of buckets.
      banned: words left out of every package.
      min_sources: a word used by fewer source packages is left out.
    Returns:
      float16 [len(binaries), dim]; rows of length about 1, or zero where no word is left.
    """
    counts = [words_of_package(b, text, banned) for b, text in zip(binaries, descriptions, strict=True)]
    used_by: dict[str, set[str]] = defaultdict(set)
    for binary, count in zip(binaries, counts, strict=True):
        for word in count:
            used_by[word].add(binary.source)
    num_sources = len({binary.source for binary in binaries})
    # A family of 300 packages from one source repeats its text 300 times, so rarity is counted over sources.
    idf = {w: math.log(num_sources / len(by)) for w, by in used_by.items() if len(by) >= min_sources}
    slots = {word: bucket_and_sign(word, dim) for word in idf}
    rows = np.zeros((len(binaries), dim), dtype=np.float64)
    for row, count in zip(rows, counts, strict=True):
        for word, tf in sorted(count.items()):
            if word in idf:
                bucket, sign = slots[word]
                row[bucket] += sign * (1.0 + math.log(tf)) * idf[word]
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(norms > 0, norms, 1.0)
    return (np.round(rows / QUANTUM) * QUANTUM).astype(np.float16)
