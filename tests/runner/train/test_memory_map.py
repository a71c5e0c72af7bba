"""A training whose pixels stay in a memory map has the bits of one in memory."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.stopping import stop_after_step
from vitcli.core.data.source import Images
from vitcli.core.data.stored import StoredPixels
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data
