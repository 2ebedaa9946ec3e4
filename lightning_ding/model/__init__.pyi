from .actor import (
    GaussianHead as GaussianHead,
    HybridHead as HybridHead,
    StateDependentSigma as StateDependentSigma,
    create_actor as create_actor,
)
from .bcq import BCQ as BCQ, ActionVAE as ActionVAE
from .bdq import BDQ as BDQ
from .bro import OptimisticQAC as OptimisticQAC
from .c51 import C51DQN as C51DQN, DistributionHead as DistributionHead
from .core import RecurrentCore as RecurrentCore
from .dict_encoders import DictEncoder as DictEncoder, SeparateEncoder as SeparateEncoder
from .discrete_qac import DiscreteQAC as DiscreteQAC
from .dqn import DQN as DQN
from .dreamerv3 import DreamerV3 as DreamerV3
from .drqn import DRQN as DRQN
from .dynamics import DynamicsEnsemble as DynamicsEnsemble
from .encoder import MLPEncoder as MLPEncoder, create_encoder as create_encoder
from .ensemble import EnsembleMLP as EnsembleMLP
from .factory import create_model as create_model
from .fqf import FQF as FQF
from .gtrxl import GTrXLCore as GTrXLCore
from .heads import (
    DiscreteHead as DiscreteHead,
    DuelingHead as DuelingHead,
    MultiHead as MultiHead,
)
from .image_encoders import ConvEncoder as ConvEncoder, ImpalaEncoder as ImpalaEncoder
from .iqn import IQN as IQN, QuantileHead as QuantileHead
from .ngu import NGU as NGU
from .pdqn import PDQN as PDQN
from .pg import PG as PG
from .ppg import PPG as PPG
from .qac import ContinuousQAC as ContinuousQAC
from .qrdqn import QRDQN as QRDQN
from .rainbow import NoisyHead as NoisyHead, NoisyLinear as NoisyLinear, NoisyMLP as NoisyMLP, RainbowDQN as RainbowDQN
from .recurrent_vac import RecurrentVAC as RecurrentVAC
from .sqn import SQN as SQN
from .td7 import SALEQAC as SALEQAC
from .tdmpc2 import TDMPC2 as TDMPC2
from .teams.coma import COMA as COMA
from .teams.havac import HAVAC as HAVAC
from .teams.mat import MAT as MAT
from .teams.mixers import (
    JointValues as JointValues,
    MonotonicMixer as MonotonicMixer,
    UnrestrictedMixer as UnrestrictedMixer,
)
from .teams.team_q import (
    QMIXNetwork as QMIXNetwork,
    QTRANNetwork as QTRANNetwork,
    TeamQ as TeamQ,
    VDNNetwork as VDNNetwork,
    WQMIXNetwork as WQMIXNetwork,
)
from .teams.team_qac import TeamQAC as TeamQAC
from .teams.team_vac import RecurrentTeamVAC as RecurrentTeamVAC, TeamVAC as TeamVAC
from .vac import VAC as VAC
from .wrappers import model_wrap as model_wrap
