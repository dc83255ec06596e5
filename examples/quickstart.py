"""Quickstart: sample neighbourhoods and train GraphSAGE in one process, on a graph generated on the spot."""

import torch
import torch.nn.functional as F

import fastsample_dist as fsd
from fastsample_dist.graph.generators import planted_communities
from fastsample_dist.train.models import GraphSAGE

torch.manual_seed(0)
graph, task = planted_communities(num_nodes=5_000, num_classes=8, seed=0)
features, labels = torch.from_numpy(task.features), torch.from_numpy(task.labels)
train, test = (torch.from_numpy(task.splits[name]) for name in ("train", "test"))

sampler = fsd.NeighborSampler(graph, fanouts=[10, 5], rng_seed=0)
model = GraphSAGE(in_dim=features.shape[1], hidden_dim=64, num_classes=task.num_classes, num_layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for step in range(60):
    mb = sampler.sample(train[torch.randperm(len(train))[:500]], step=step)
    loss = F.cross_entropy(model(mb.mfgs, features[mb.input_nodes.long()]), labels[mb.seeds.long()])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
mb = sampler.sample(test)
correct = model(mb.mfgs, features[mb.input_nodes.long()]).argmax(1) == labels[mb.seeds.long()]
print(f"test accuracy {correct.float().mean().item():.3f} ({task.num_classes} classes)")
