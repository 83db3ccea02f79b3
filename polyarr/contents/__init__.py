"""Contents of model files: tensors and their statistics, configuration, progress of training, vocabulary."""

from polyarr.contents.contents import contents_of
from polyarr.contents.kinds import Contents
from polyarr.contents.picture import save_histograms
from polyarr.contents.statistics import Statistics
from polyarr.contents.stored import Tensor

__all__ = ["Contents", "Statistics", "Tensor", "contents_of", "save_histograms"]
