from .base import ActionEncoding as ActionEncoding, RewardModel as RewardModel
from .gail import GAILConfig as GAILConfig, GAILRewardModel as GAILRewardModel
from .icm import ICMConfig as ICMConfig, ICMRewardModel as ICMRewardModel
from .intrinsic import IntrinsicConfig as IntrinsicConfig, IntrinsicRewardModel as IntrinsicRewardModel
from .rnd import RNDConfig as RNDConfig, RNDRewardModel as RNDRewardModel
