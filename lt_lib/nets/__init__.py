"""Networks with a linear, cosine or fixed-ETF head: CIFAR-style ResNets, ResNet-50 and ResNeXt-50 (32x4d)."""

from lt_lib.nets._base import Classifier
from lt_lib.nets.build import ARCHS, NetConfig, build_net, net_config
from lt_lib.nets.heads import HEAD_NAMES, CosineHead, ETFHead, LinearHead
from lt_lib.nets.imagenet import TorchvisionResNet, torchvision_resnet
from lt_lib.nets.resnet import ResNet, resnet

__all__ = [
    "ARCHS",
    "HEAD_NAMES",
    "Classifier",
    "CosineHead",
    "ETFHead",
    "LinearHead",
    "NetConfig",
    "ResNet",
    "TorchvisionResNet",
    "build_net",
    "net_config",
    "resnet",
    "torchvision_resnet",
]
