"""The schedule that loses least in a given time: candidates that fill the budget, then calibration runs of these."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recap.core.heads import CategoricalHead
from recap.core.options import SamplingOptions
from recap.pipelines import Pipeline
from recap.runs.works import Labels
from recap.tuning.agreement import lost
from recap.tuning.latency import Latency
from recap.view.progress import tqdm
