from .as_numpy import TensorsAsNumpy as TensorsAsNumpy
from .batched import BatchedEnv as BatchedEnv
from .classic import CartPole as CartPole, MountainCar as MountainCar, Pendulum as Pendulum
from .jax_envs import BraxEnv as BraxEnv, GymnaxEnv as GymnaxEnv, JaxEnv as JaxEnv
from .reader import TensorEnv as TensorEnv, TensorStep as TensorStep
