"""All-Reduce for clusters that straggle, drop packets, have thin links, and whose peers come and go."""

from unisono._core import Codec, DeliveryOptions, Group, StepCodec, Work, join
from unisono._errors import Corrupt, Error, Internal, Invalid, Late, PeerLost, Unavailable, Unsupported
