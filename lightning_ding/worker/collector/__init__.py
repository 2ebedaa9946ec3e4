"""Collectors: they act in environments and hand over transitions."""

from lightning_ding.worker.collector.base import ISerialCollector
from lightning_ding.worker.collector.factory import create_serial_collector, get_serial_collector_cls
from lightning_ding.worker.collector.sample import SampleSerialCollector

__all__ = ["ISerialCollector", "SampleSerialCollector", "create_serial_collector", "get_serial_collector_cls"]
