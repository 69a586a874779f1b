"""The kernels in Triton, with the signatures of ``reference``. Importing this imports Triton."""

from ragblend.kernels.triton import attend, place, received, write
from ragblend.kernels.triton import deviation as deviations
from ragblend.kernels.triton.turns import in_turn

__all__ = ["attend_rows", "attention_received", "deviation", "place_chunks", "write_rows"]

attend_rows = in_turn(attend.attend_rows)
attention_received = in_turn(received.attention_received)
deviation = in_turn(deviations.deviation)
place_chunks = in_turn(place.place_chunks)
write_rows = in_turn(write.write_rows)
