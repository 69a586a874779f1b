"""The kernels in Triton, with the signatures of ``reference``. Importing this imports Triton."""

from ragblend.kernels.triton.attend import attend_rows
from ragblend.kernels.triton.deviation import deviation
from ragblend.kernels.triton.place import place_chunks
from ragblend.kernels.triton.received import attention_received
from ragblend.kernels.triton.write import write_rows

__all__ = ["attend_rows", "attention_received", "deviation", "place_chunks", "write_rows"]
