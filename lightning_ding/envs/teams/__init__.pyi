from .games import MatrixGame as MatrixGame, SwitchRiddle as SwitchRiddle, TwoStepGame as TwoStepGame
from .parallel import ParallelTeam as ParallelTeam
from .tuples import TupleTeam as TupleTeam
from .vmas import VmasTeam as VmasTeam
