"""Networks: CIFAR-style ResNets with a linear, cosine or fixed-ETF head, built from a configuration."""

from lt_lib.nets.build import NetConfig, build_net
from lt_lib.nets.heads import HEAD_NAMES, CosineHead, ETFHead, LinearHead
from lt_lib.nets.resnet import ResNet, resnet

__all__ = [
    "HEAD_NAMES",
    "CosineHead",
    "ETFHead",
    "LinearHead",
    "NetConfig",
    "ResNet",
    "build_net",
    "resnet",
]
