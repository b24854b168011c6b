"""How fast the models of Gavel's Philly traces train: what turns their ``total_steps`` into seconds.

Steps a second on one V100, from Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads" (OSDI 2020), the artefact's measured table (MIT licence). The traces were made from Philly's durations in
whole seconds as ``steps = floor(seconds * rate)``, with the rate of one GPU whatever the size of the gang: the rates
above one step a second follow from that alone, to seven digits or more, as the only ones for which every job of both
virtual clusters ran for whole seconds (docs/replay.md shows the check). So the seconds are Philly's own again.
"""

from __future__ import annotations

STEPS_PER_S = {
    "A3C": 8.23303321,
    "CycleGAN": 4.91849474,
    "LM (batch size 5)": 167.12285773,
    "LM (batch size 10)": 143.3605130,
    "LM (batch size 20)": 107.9508716,
    "LM (batch size 40)": 71.723036754,
    "LM (batch size 80)": 43.9036107,
    "Recommendation (batch size 512)": 0.3314820826,
    "Recommendation (batch size 1024)": 0.4799797333,
    "Recommendation (batch size 2048)": 0.5675318418,
    "Recommendation (batch size 4096)": 0.6244083613,
    "Recommendation (batch size 8192)": 0.6023546958,
    "ResNet-18 (batch size 16)": 77.31737360,
    "ResNet-18 (batch size 32)": 65.80540714,
    "ResNet-18 (batch size 64)": 48.88418048,
    "ResNet-18 (batch size 128)": 30.28750495,
    "ResNet-18 (batch size 256)": 16.98737110,
    "ResNet-50 (batch size 16)": 17.37438940,
    "ResNet-50 (batch size 32)": 9.92058345,
    "ResNet-50 (batch size 64)": 5.45759999,
    "ResNet-50 (batch size 128)": 2.84598114,
    "Transformer (batch size 16)": 12.84565244,
    "Transformer (batch size 32)": 12.47527772,
    "Transformer (batch size 64)": 9.56802371,
    "Transformer (batch size 128)": 5.77121085,
    "Transformer (batch size 256)": 1.70702995,
}
