"""Attention that a graph spells as two products and what is between: see runtime_ref/attention_patterns.py."""

from __future__ import annotations

from mnnconvert.ops.matmul import MatMul
from mnnconvert.runtime_ref.attention_patterns import find_attention
from mnnconvert.runtime_ref.cpu.lower import finds

finds(MatMul)(find_attention)
