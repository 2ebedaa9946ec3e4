from .advanced import AdvancedReplayBuffer as AdvancedReplayBuffer, LAPReplayBuffer as LAPReplayBuffer
from .base import IBuffer as IBuffer, create_buffer as create_buffer, get_buffer_cls as get_buffer_cls
from .episode import EpisodeReplayBuffer as EpisodeReplayBuffer
from .her import HERReplayBuffer as HERReplayBuffer
from .imagination import ImaginationReplayBuffer as ImaginationReplayBuffer
from .naive import NaiveReplayBuffer as NaiveReplayBuffer
from .prioritised_sequence import PrioritisedSequenceReplayBuffer as PrioritisedSequenceReplayBuffer
from .sampling import NotEnoughError as NotEnoughError
from .sequence import SequenceReplayBuffer as SequenceReplayBuffer
