"""Tiny graphs and, for every input format, a writer of its layout by hand: no other library is needed.

`draw_graph` has one node type, `TYPED` three; `flat` is the oracle of how types become one id space.
"""

import gzip
import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.generators import write_npy_graph
from fastsample_dist.graph.inputs import ReadOptions, Scratch

SUFFIXES = {"csv": "txt", "numpy": "npy", "parquet": "parquet"}
SPLITS = {"train": "train", "val": "valid", "test": "test"}


def read_with(reader: Callable[[Path, ReadOptions], RawGraph], path: Path) -> tuple[RawGraph, dict]:
    """A graph as a reader gives it, and what it lists (see `found`), taken while its files are there."""
    with Scratch() as scratch:
        raw = reader(path, ReadOptions(scratch=scratch))
        return raw, found(raw)


def refusal_of(reader: Callable[[Path, ReadOptions], RawGraph], path: Path) -> str:
    """The one line of a reader that refuses a path."""
    with pytest.raises(ValueError) as caught:
        read_with(reader, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change_json(file: Path, edit: Callable[[dict], object]) -> None:
    """Edit a file of JSON in place."""
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))


@dataclass
class Graph:
    """A graph of one node type; labels outside the splits are -1."""

    edges: np.ndarray
    num_nodes: int
    features: np.ndarray
    labels: np.ndarray
    splits: dict[str, np.ndarray]
    weights: np.ndarray | None = None

    def mask(self, split: str) -> np.ndarray:
        return np.isin(np.arange(self.num_nodes), self.splits[split])


@dataclass
class Typed:
    """A graph of several types: {type: ...} and {(source, relation, target): edges}."""

    counts: dict[str, int]
    edges: dict[tuple[str, str, str], np.ndarray]
    features: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    splits: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


def draw_graph(*, weighted: bool = False, num_nodes: int = 30, num_edges: int = 90) -> Graph:
    """Drawn edges with parallel ones and self-loops; feature rows tell the node."""
    rng = np.random.default_rng(3)
    order = rng.permutation(num_nodes)
    splits = {"train": np.sort(order[:12]), "val": np.sort(order[12:20]), "test": np.sort(order[20:26])}
    labels = np.full(num_nodes, -1)
    labels[order[:26]] = order[:26] % 3
    edges = rng.integers(0, num_nodes, (2, num_edges))
    edges[:, -2:] = edges[:, :2]
    edges[1, 2] = edges[0, 2]
    return Graph(
        edges=edges,
        num_nodes=num_nodes,
        features=(np.arange(num_nodes)[:, None] * 10 + np.arange(4)).astype(np.float32),
        labels=labels,
        splits=splits,
        weights=np.arange(num_edges, dtype=np.float32) / 4 if weighted else None,
    )


TYPED = Typed(
    counts={"author": 3, "paper": 5, "venue": 2},
    edges={
        ("author", "writes", "paper"): np.array([[0, 2, 1, 0], [4, 0, 3, 4]]),
        ("paper", "at", "venue"): np.array([[0, 4], [1, 0]]),
        ("paper", "cites", "paper"): np.array([[1, 2, 2], [0, 2, 4]]),
    },
    features={
        "author": np.arange(6, dtype=np.float32).reshape(3, 2),
        "paper": np.arange(50, 60, dtype=np.float32).reshape(5, 2),
    },
    labels={"paper": np.array([2, -1, 0, 1, 0])},
    splits={"paper": {"train": np.array([0, 4]), "val": np.array([2]), "test": np.array([3])}},
)


def flat(graph: Typed) -> dict:
    """Oracle: one type after the other, edge by edge."""
    names = list(graph.counts)
    start = {name: sum(graph.counts[before] for before in names[:i]) for i, name in enumerate(names)}
    width = next(iter(graph.features.values())).shape[1]
    return {
        "edges": sorted(
            (start[source] + src, start[target] + dst)
            for (source, _, target), edges in graph.edges.items()
            for src, dst in edges.T.tolist()
        ),
        "features": [
            graph.features[name][node].tolist() if name in graph.features else [0.0] * width
            for name in names
            for node in range(graph.counts[name])
        ],
        "labels": [
            int(graph.labels[name][node]) if name in graph.labels else -1
            for name in names
            for node in range(graph.counts[name])
        ],
        "splits": {
            split: [start[name] + node for name in graph.splits for node in graph.splits[name][split].tolist()]
            for split in SPLITS
        },
    }


def found(raw) -> dict:
    """A RawGraph in the form of `flat`."""
    return {
        "edges": sorted(zip(*raw.edge_index.tolist(), strict=True)),
        "features": raw.features[np.arange(raw.num_nodes)].tolist(),
        "labels": raw.labels.tolist(),
        "splits": {split: ids.tolist() for split, ids in raw.splits.items()},
    }


def listed(graph: Graph) -> dict:
    """A graph of one type in the form of `flat`."""
    return {
        "edges": sorted(zip(*graph.edges.tolist(), strict=True)),
        "features": graph.features.tolist(),
        "labels": graph.labels.tolist(),
        "splits": {split: ids.tolist() for split, ids in graph.splits.items()},
    }


def write_npy(path: Path, graph: Graph) -> Path:
    arrays = {} if graph.weights is None else {"edge_weight": graph.weights}
    write_npy_graph(
        path,
        (graph.edges, graph.num_nodes),
        name="tiny",
        features=graph.features,
        labels=graph.labels,
        splits=graph.splits,
        undirected=False,
        arrays=arrays,
    )
    return path


def put_csv(file: Path, rows, *, delimiter: str = ",") -> None:
    """Write a table as text, packed if its name says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(delimiter.join("nan" if x != x else str(x) for x in row) + "\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())


def put_parquet(file: Path, pairs: np.ndarray) -> None:
    """Write edges [n, 2] as DGL's tools do: two columns of any name."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"0": pairs[:, 0], "1": pairs[:, 1]}), file)


def column(values) -> list[list]:
    return [[value] for value in np.asarray(values).tolist()]


def as_floats(labels: np.ndarray) -> np.ndarray:
    """Labels as ogb writes those of sets with unlabelled nodes."""
    return np.where(labels < 0, np.nan, labels)


def write_ogb(path: Path, graph: Graph) -> Path:
    put_csv(path / "raw/edge.csv.gz", graph.edges.T.tolist())
    put_csv(path / "raw/num-node-list.csv.gz", [[graph.num_nodes]])
    put_csv(path / "raw/num-edge-list.csv.gz", [[graph.edges.shape[1]]])
    put_csv(path / "raw/node-feat.csv.gz", graph.features.tolist())
    put_csv(path / "raw/node-label.csv.gz", column(as_floats(graph.labels)))
    for split, name in SPLITS.items():
        put_csv(path / f"split/time/{name}.csv.gz", column(graph.splits[split]))
    return path


def write_ogb_binary(path: Path, graph: Graph, *, packed: bool, split_dict: bool = True) -> Path:
    (path / "raw").mkdir(parents=True)
    (path / "split/time").mkdir(parents=True)
    save = np.savez_compressed if packed else np.savez
    save(
        path / "raw/data.npz",
        edge_index=graph.edges,
        num_nodes_list=np.array([graph.num_nodes]),
        num_edges_list=np.array([graph.edges.shape[1]]),
        node_feat=graph.features,
        node_year=np.arange(graph.num_nodes)[:, None],
    )
    save(path / "raw/node-label.npz", node_label=as_floats(graph.labels).astype(np.float32)[:, None])
    if split_dict:
        torch.save({name: graph.splits[split] for split, name in SPLITS.items()}, path / "split/time/split_dict.pt")
    else:
        for split, name in SPLITS.items():
            put_csv(path / f"split/time/{name}.csv.gz", column(graph.splits[split]))
    return path


def write_ogb_typed(path: Path, graph: Typed) -> Path:
    names = list(graph.counts)
    put_csv(path / "raw/num-node-dict.csv.gz", [names, list(graph.counts.values())])
    put_csv(path / "raw/nodetype-has-label.csv.gz", [names, [name in graph.labels for name in names]])
    put_csv(path / "raw/triplet-type-list.csv.gz", graph.edges)
    for triplet, edges in graph.edges.items():
        directory = path / "raw/relations" / "___".join(triplet)
        put_csv(directory / "edge.csv.gz", edges.T.tolist())
        put_csv(directory / "num-edge-list.csv.gz", [[edges.shape[1]]])
    for name, rows in graph.features.items():
        put_csv(path / f"raw/node-feat/{name}/node-feat.csv.gz", rows.tolist())
    for name, labels in graph.labels.items():
        put_csv(path / f"raw/node-label/{name}/node-label.csv.gz", column(as_floats(labels)))
    put_csv(path / "split/time/nodetype-has-split.csv.gz", [names, [name in graph.splits for name in names]])
    for name, splits in graph.splits.items():
        for split, file in SPLITS.items():
            put_csv(path / f"split/time/{name}/{file}.csv.gz", column(splits[split]))
    return path


def typed_from(graph: Graph) -> Typed:
    """A graph of one type as one of types; its type is called `node`."""
    return Typed(
        counts={"node": graph.num_nodes},
        edges={("node", "to", "node"): graph.edges},
        features={"node": graph.features},
        labels={"node": graph.labels},
        splits={"node": graph.splits},
    )


def write_chunked(path: Path, graph: Graph | Typed, *, edges_as: str = "csv", chunks: int = 2) -> Path:
    """DGL's chunked format; every array is cut into `chunks` files of unequal length."""
    typed = graph if isinstance(graph, Typed) else typed_from(graph)
    weights = None if isinstance(graph, Typed) else graph.weights
    path.mkdir(parents=True)

    def cut(array: np.ndarray, name: str, kind: str) -> dict:
        files = []
        for number, part in enumerate(np.split(array, [len(array) // 3 + 1] if chunks == 2 else [])):
            file = path / f"{name}-{number}.{SUFFIXES[kind]}"
            file.parent.mkdir(parents=True, exist_ok=True)
            if kind == "csv":
                put_csv(file, part.tolist(), delimiter=" ")
            elif kind == "parquet":
                put_parquet(file, part)
            else:
                np.save(file, part)
            files.append(str(file.relative_to(path)))
        described = {"name": "csv", "delimiter": " "} if kind == "csv" else {"name": kind}
        return {"format": described, "data": files}

    node_data: dict[str, dict] = {}
    for name, count in typed.counts.items():
        data = {"feat": typed.features.get(name), "label": typed.labels.get(name)}
        for split, ids in typed.splits.get(name, {}).items():
            data[f"{split}_mask"] = np.isin(np.arange(count), ids)
        node_data[name] = {
            key: cut(array, f"node_data/{name}/{key}", "numpy") for key, array in data.items() if array is not None
        }
    meta = {
        "graph_name": "tiny",
        "node_type": list(typed.counts),
        "num_nodes_per_chunk": [[count] for count in typed.counts.values()],
        "edge_type": [":".join(key) for key in typed.edges],
        "num_edges_per_chunk": [[edges.shape[1]] for edges in typed.edges.values()],
        "edges": {":".join(key): cut(edges.T, f"edges/{key[1]}", edges_as) for key, edges in typed.edges.items()},
        "node_data": node_data,
        "edge_data": {} if weights is None else {"node:to:node": {"weight": cut(weights, "edge_data/w", "numpy")}},
    }
    (path / "metadata.json").write_text(json.dumps(meta))
    return path


def write_graphbolt(path: Path, graph: Graph | Typed, *, edges_as: str = "csv", data_as: str = "numpy") -> Path:
    """A GraphBolt data set; JSON is YAML too."""
    typed = graph if isinstance(graph, Typed) else typed_from(graph)
    one = isinstance(graph, Graph)
    path.mkdir(parents=True)

    def saved(array: np.ndarray, stem: str, **entry) -> dict:
        file = path / f"{stem}.{'npy' if data_as == 'numpy' else 'pt'}"
        if data_as == "numpy":
            np.save(file, array)
        else:
            torch.save(torch.from_numpy(np.ascontiguousarray(array)), file)
        return {**entry, "format": data_as, "path": file.name}

    def typed_entry(name: str) -> dict:
        return {} if one else {"type": name}

    edges = []
    for key, pairs in typed.edges.items():
        entry = typed_entry(":".join(key))
        if edges_as == "csv":
            put_csv(path / f"{key[1]}.csv", pairs.T.tolist())
            edges.append({**entry, "format": "csv", "path": f"{key[1]}.csv"})
        else:
            np.save(path / f"{key[1]}-edges.npy", pairs)
            edges.append({**entry, "format": "numpy", "path": f"{key[1]}-edges.npy"})
    data = [
        saved(rows, f"{name}-feat", domain="node", name="feat", **typed_entry(name))
        for name, rows in typed.features.items()
    ]
    if one and graph.weights is not None:
        data.append(saved(graph.weights, "weight", domain="edge", name="weight"))
    sets = {"train": "train_set", "val": "validation_set", "test": "test_set"}
    task = {"name": "node_classification", "num_classes": 3}
    for split, key in sets.items():
        task[key] = [
            {
                **typed_entry(name),
                "data": [
                    saved(splits[split], f"{name}-{split}-seeds", name="seeds"),
                    saved(typed.labels[name][splits[split]], f"{name}-{split}-labels", name="labels"),
                ],
            }
            for name, splits in typed.splits.items()
        ]
    meta = {
        "dataset_name": "tiny",
        "graph": {"nodes": [{**typed_entry(n), "num": c} for n, c in typed.counts.items()], "edges": edges},
        "feature_data": data,
        "tasks": [task],
    }
    (path / "metadata.yaml").write_text(json.dumps(meta))
    return path


def pyg_attributes(graph: Graph) -> dict:
    """Attributes of a Data."""
    attributes = {
        "x": torch.from_numpy(graph.features),
        "edge_index": torch.from_numpy(graph.edges),
        "y": torch.from_numpy(graph.labels),
        **{f"{split}_mask": torch.from_numpy(graph.mask(split)) for split in SPLITS},
    }
    if graph.weights is not None:
        attributes["edge_attr"] = torch.from_numpy(graph.weights)[:, None]
    return attributes


def dgl_graph(dgl: types.ModuleType, graph: Graph, feature: str = "feat", label: str = "label") -> object:
    """A DGLGraph with all that a weighted graph has."""
    made = dgl.graph(tuple(torch.from_numpy(graph.edges)), num_nodes=graph.num_nodes)
    made.ndata[feature], made.ndata[label] = torch.from_numpy(graph.features), torch.from_numpy(graph.labels)
    for split in SPLITS:
        made.ndata[f"{split}_mask"] = torch.from_numpy(graph.mask(split))
    made.edata["weight"] = torch.from_numpy(graph.weights)
    return made


def dgl_heterograph(dgl: types.ModuleType, graph: Typed) -> object:
    """A DGLGraph of several node types, with their features, labels and splits."""
    edges = {key: tuple(torch.from_numpy(pairs)) for key, pairs in graph.edges.items()}
    made = dgl.heterograph(edges, num_nodes_dict=graph.counts)
    for name, rows in graph.features.items():
        made.nodes[name].data["feat"] = torch.from_numpy(rows)
    for name, labels in graph.labels.items():
        made.nodes[name].data["label"] = torch.from_numpy(labels)
    for name, splits in graph.splits.items():
        for split, ids in splits.items():
            mask = np.isin(np.arange(graph.counts[name]), ids)
            made.nodes[name].data[f"{split}_mask"] = torch.from_numpy(mask)
    return made


def pyg_stores(graph: Typed) -> dict:
    """Stores of a HeteroData, as its to_dict gives them."""
    stores: dict = {"_global_store": {}}
    for name, count in graph.counts.items():
        store = stores[name] = {"num_nodes": count}
        if name in graph.features:
            store["x"] = torch.from_numpy(graph.features[name])
        if name in graph.labels:
            store["y"] = torch.from_numpy(graph.labels[name])
        for split, ids in graph.splits.get(name, {}).items():
            store[f"{split}_mask"] = torch.from_numpy(np.isin(np.arange(count), ids))
    return {**stores, **{key: {"edge_index": torch.from_numpy(edges)} for key, edges in graph.edges.items()}}


class PygPickles:
    """Classes under PyG's names while the block runs, so that torch.save writes what PyG's own would."""

    NAMES = (
        "data.Data",
        "hetero_data.HeteroData",
        "storage.GlobalStorage",
        "storage.NodeStorage",
        "storage.EdgeStorage",
    )

    def __enter__(self) -> "PygPickles":
        self.before = {name: module for name, module in sys.modules.items() if name.startswith("torch_geometric")}
        self.classes = {}
        for name in self.before:  # the real classes stay as they are
            del sys.modules[name]
        for name in ("torch_geometric", "torch_geometric.data"):
            sys.modules[name] = types.ModuleType(name)
        for path in self.NAMES:
            module_name, class_name = f"torch_geometric.data.{path.split('.')[0]}", path.split(".")[1]
            module = sys.modules.setdefault(module_name, types.ModuleType(module_name))
            made = type(class_name, (), {"__module__": module_name})
            setattr(module, class_name, made)
            self.classes[class_name] = made
        return self

    def __exit__(self, *_: object) -> None:
        for name in [name for name in sys.modules if name.startswith("torch_geometric")]:
            del sys.modules[name]
        sys.modules.update(self.before)

    def made(self, name: str, **state: object) -> object:
        thing = self.classes[name]()
        thing.__dict__.update(state)
        return thing

    def data(self, attributes: dict) -> object:
        return self.made("Data", _store=self.made("GlobalStorage", _mapping=attributes))

    def hetero(self, stores: dict) -> object:
        nodes, edges = {}, {}
        for key, store in stores.items():
            if isinstance(key, tuple):
                edges[key] = self.made("EdgeStorage", _mapping=store, _key=key)
            elif key != "_global_store":
                nodes[key] = self.made("NodeStorage", _mapping=store, _key=key)
        return self.made("HeteroData", _node_store_dict=nodes, _edge_store_dict=edges)


def write_pyg(path: Path, graph: Graph | Typed, *, form: str = "object") -> Path:
    """A Data or HeteroData; `form`: "object", "dataset" (mapping, slices, class) or "collated" (object, slices)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with PygPickles() as pyg:
        typed = isinstance(graph, Typed)
        mapping = pyg_stores(graph) if typed else pyg_attributes(graph)
        thing = pyg.hetero(mapping) if typed else pyg.data(mapping)
        kind = pyg.classes["HeteroData" if typed else "Data"]
        saved = {"object": thing, "dataset": (mapping, None, kind), "collated": (thing, None)}[form]
        torch.save(saved, path)
    return path
