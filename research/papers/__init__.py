"""The experiments of the five papers, one file per paper: what they varied, and what they claimed."""

from __future__ import annotations

from research.experiment import Paper
from research.papers import dexin, index_count, pri_rein, rein, symmetric

PAPERS: dict[str, Paper] = {
    paper.name: paper for paper in (rein.PAPER, symmetric.PAPER, index_count.PAPER, pri_rein.PAPER, dexin.PAPER)
}
