"""GPUs as NVIDIA's tools tell of them."""

from __future__ import annotations

from tests.cuda.driver import Card

# RayLLM's name of the GPU (Ray has one name for both A100) → the card.
CARDS = {
    "T4": Card("Tesla T4", 15360, "7.5"),
    "A10": Card("NVIDIA A10", 23028, "8.6"),
    "A10G": Card("NVIDIA A10G", 23028, "8.6"),
    "A30": Card("NVIDIA A30", 24576, "8.0"),
    "A40": Card("NVIDIA A40", 46068, "8.6"),
    "RTX-A6000": Card("NVIDIA RTX A6000", 49140, "8.6"),
    "A100-40G": Card("NVIDIA A100-SXM4-40GB", 40960, "8.0"),
    "A100-80G": Card("NVIDIA A100-SXM4-80GB", 81920, "8.0"),
    "L4": Card("NVIDIA L4", 23034, "8.9"),
    "L40": Card("NVIDIA L40", 46068, "8.9"),
    "L40S": Card("NVIDIA L40S", 46068, "8.9"),
    "RTX-6000": Card("NVIDIA RTX 6000 Ada Generation", 49140, "8.9"),
    "GeForce-RTX-3090": Card("NVIDIA GeForce RTX 3090", 24576, "8.6"),
    "GeForce-RTX-4090": Card("NVIDIA GeForce RTX 4090", 24564, "8.9"),
    "GeForce-RTX-5090": Card("NVIDIA GeForce RTX 5090", 32607, "12.0"),
    "RTX-PRO-6000": Card("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "12.0"),
    "H100": Card("NVIDIA H100 80GB HBM3", 81559, "9.0"),
    "H20": Card("NVIDIA H20", 97871, "9.0"),
    "H200": Card("NVIDIA H200", 143771, "9.0"),
    "GH200": Card("NVIDIA GH200 480GB", 97871, "9.0"),
    "B200": Card("NVIDIA B200", 183359, "10.0"),
    "GB200": Card("NVIDIA GB200", 189471, "10.0"),
    "B300": Card("NVIDIA B300 SXM6 AC", 275040, "10.3"),
}
# One that CUDA 13 does not run on.
V100 = Card("Tesla V100-SXM2-16GB", 16384, "7.0")
