from .as_numpy import TensorsAsNumpy as TensorsAsNumpy
from .batched import BatchedEnv as BatchedEnv
from .classic import CartPole as CartPole, MountainCar as MountainCar, Pendulum as Pendulum
from .reader import TensorEnv as TensorEnv, TensorStep as TensorStep
