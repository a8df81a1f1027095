"""Networks with a linear, cosine or fixed-ETF head: CIFAR-style ResNets, ResNet-50 and ResNeXt-50 (32x4d)."""

from lt_lib.nets._base import Classifier
from lt_lib.nets.build import ARCHS, NetConfig, build_net, net_config
from lt_lib.nets.extras import EXTRA_NAMES, BCLHeads, GLMCHeads, attach_extras, extras_of
from lt_lib.nets.heads import HEAD_NAMES, CosineHead, ETFHead, LinearHead
from lt_lib.nets.imagenet import TorchvisionResNet, torchvision_resnet
from lt_lib.nets.resnet import ResNet, resnet

__all__ = [
    "ARCHS",
    "EXTRA_NAMES",
    "HEAD_NAMES",
    "BCLHeads",
    "Classifier",
    "CosineHead",
    "ETFHead",
    "GLMCHeads",
    "LinearHead",
    "NetConfig",
    "ResNet",
    "TorchvisionResNet",
    "attach_extras",
    "build_net",
    "extras_of",
    "net_config",
    "resnet",
    "torchvision_resnet",
]
