"""Programs whose values decide what is computed, in PyTorch: what control_flow.py puts beside ours (spec/examples/early_exit, exit_per_layer,
stack_machine, varying_depth, bi_rnn, tree_lstm, mv_rnn, drnn), with the weights and inputs that it gives to both.

Each net has three ways to run, all over buffers that stay where they are: `eager`, which asks for a value (`item()`) where it has to decide;
`segments`, a CUDA graph for what lies between two decisions, the value that decides copied to pinned memory at its end, no wait for a value that
cannot change what comes next (where the host knows how far a run goes, a graph for each length there is); `padded`, one CUDA graph of all that might be
computed, values that do not count masked. Without CUDA the graphs are plain calls.
"""
import random

import micro
import torch
import torch.nn.functional as F

MARGIN = 1e-3  # values that decide keep so far from where they would decide otherwise: sums are rounded differently
EPS = 1e-5
DRAWS = 12     # batches of candidates that are looked through for the outcomes that are wanted


def attend(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(*(t[None] for t in (q, k, v)))[0] if q.dim() == 3 else F.scaled_dot_product_attention(q, k, v)  # fast in 4 dims
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


class Net:
    """What all nets share: weights, buffers of the inputs, graphs, and the value that decides, on its way to the host."""

    def __init__(self, dims, device):
        self.dims, self.device = dims, device
        torch.manual_seed(1)
        self.w = {name: value.to(device) for name, value in self.make_weights().items()}
        self.exact = {name: value.double().cpu() for name, value in self.w.items()}
        self.said = torch.zeros(1, dtype=torch.int64, pin_memory=device == "cuda")

    def normal(self, *shape, scale=None):
        return torch.randn(*shape) * (shape[-1] ** -0.5 if scale is None else scale)

    def load(self, inputs):
        """Puts the inputs of a run where it takes them from."""
        for name, value in inputs.items():
            self.inputs[name].copy_(value)

    def hold(self, inputs):
        self.inputs = {name: value.to(self.device).clone() for name, value in inputs.items()}

    def graph(self, function):
        return micro.as_graph(torch, function) if self.device == "cuda" else function

    def tell(self, value):
        self.said.copy_(value.reshape(1).long(), non_blocking=True)

    def told(self):
        if self.device == "cuda":
            torch.cuda.current_stream().synchronize()
        return int(self.said[0])

    def zeros(self, *shape, dtype=torch.int64):
        return torch.zeros(*shape, dtype=dtype, device=self.device)


class Encoder(Net):
    """Layers in stages; behind each but the last a classifier says whether it is sure enough to stop."""

    def make_weights(self):
        d, ffn = self.dims["d"], self.dims["ffn"]
        out = {"w_exit": self.normal(self.dims["classes"], d, scale=4 * d ** -0.5)}
        for layer in (name for stage in self.stages() for name in stage):
            for name, shape in (("wqkv", (3 * d, d)), ("wo", (d, d)), ("w1", (ffn, d)), ("w2", (d, ffn))):
                out[f"{layer}.{name}"] = self.normal(*shape)
            for name, size in (("b1", d), ("c1", ffn), ("c2", d), ("b2", d)):
                out[f"{layer}.{name}"] = self.normal(size, scale=0.1)
            for name in ("g1", "g2"):
                out[f"{layer}.{name}"] = 1 + self.normal(d, scale=0.1)
        return out

    def layer(self, w, name, h):
        d, heads = self.dims["d"], self.dims["heads"]
        q, k, v = (t.unflatten(-1, (heads, d // heads)).transpose(-2, -3) for t in F.linear(h, w[f"{name}.wqkv"]).chunk(3, -1))
        s = attend(q, k, v).transpose(-2, -3).flatten(-2)
        h = F.layer_norm(F.linear(s, w[f"{name}.wo"]) + h, (d,), w[f"{name}.g1"], w[f"{name}.b1"], EPS)
        m = F.gelu(F.linear(h, w[f"{name}.w1"], w[f"{name}.c1"]))
        return F.layer_norm(F.linear(m, w[f"{name}.w2"], w[f"{name}.c2"]) + h, (d,), w[f"{name}.g2"], w[f"{name}.b2"], EPS)

    def stage(self, w, index, h):
        for name in self.stages()[index]:
            h = self.layer(w, name, h)
        return h, torch.softmax(F.linear(h.mean(-2, keepdim=True), w["w_exit"]), -1)

    def draw(self, count):
        """Inputs that stop behind each stage in turn, as far as candidates do: where the classifier is surer than ever before, a threshold lies below."""
        found, draw, last = {}, random.Random(1), len(self.stages()) - 1
        for _ in range(DRAWS):
            h = x = torch.randn(32, self.dims["n"], self.dims["d"]).double()
            best = []
            for index in range(last + 1):
                h, likely = self.stage(self.exact, index, h)
                best.append(likely.amax((-1, -2)))
            for i in range(len(x)):
                sure = [b[i].item() for b in best]
                for index in range(last + 1):
                    below = max([0.0] + sure[:index])
                    above = sure[index] if index < last else 1.0
                    if above - below >= 4 * MARGIN:
                        found.setdefault(index, []).append((x[i].float(), below + (above - below) * draw.uniform(0.3, 0.7)))
            if len(found) > last and min(map(len, found.values())) * len(found) >= count:
                break
        for index in found:
            draw.shuffle(found[index])
        turns = [found[index][turn] for turn in range(count) for index in sorted(found) if turn < len(found[index])][:count]
        draw.shuffle(turns)
        return [{"x": x, "threshold": torch.tensor([threshold])} for x, threshold in turns]

    def truth(self, inputs):
        h, threshold = inputs["x"].double(), inputs["threshold"].item()
        for index in range(len(self.stages())):
            h, likely = self.stage(self.exact, index, h)
            if likely.max().item() >= threshold:
                break
        return self.results(h, likely, torch.tensor([index + 1])), self.steps(index)

    def eager(self):
        h = self.inputs["x"]
        for index in range(len(self.stages())):
            h, likely = self.stage(self.w, index, h)
            if index + 1 < len(self.stages()) and (likely.max() >= self.inputs["threshold"]).item():
                break
        return self.results(h, likely, torch.tensor([index + 1]))

    def segments(self):
        made, last = {}, len(self.stages()) - 1  # of each stage what it made, at the place where its graph makes it

        def one(index):
            made[index] = self.stage(self.w, index, made[index - 1][0] if index > 0 else self.inputs["x"])
            if index < last:
                self.tell(made[index][1].max() < self.inputs["threshold"])
        graphs = [self.graph(lambda index=index: one(index)) for index in range(last + 1)]

        def run():
            for index, graph in enumerate(graphs):
                graph()
                if index < last and not self.told():
                    break
            return self.results(*made[index], torch.tensor([index + 1]))
        return run

    def padded(self):
        def all_of_it():
            h, depth = self.inputs["x"], self.zeros(1)
            going = depth == 0
            for index in range(len(self.stages())):
                new, maybe = self.stage(self.w, index, h if index == 0 else new)
                h = new if index == 0 else torch.where(going, new, h)
                likely = maybe if index == 0 else torch.where(going, maybe, likely)
                depth = depth + going
                going = going & (maybe.max() < self.inputs["threshold"])
            return self.results(h, likely, depth)
        return self.graph(all_of_it)


class EarlyExit(Encoder):
    def stages(self):
        return [[f"first.{i}" for i in range(self.dims["first"])], [f"rest.{i}" for i in range(self.dims["rest"])]]

    def results(self, h, likely, depth):
        return {"y": h, "scores": likely}

    def steps(self, index):
        return self.dims["first"] + (self.dims["rest"] if index == 1 else 0)


class ExitPerLayer(Encoder):
    def stages(self):
        return [[f"layers.{i}"] for i in range(self.dims["layers"])]

    def results(self, h, likely, depth):
        return {"scores": likely, "depth": depth}

    def steps(self, index):
        return index + 1


class Recurrent(Net):
    """A cell that is applied as often as values say."""

    def draw(self, count):
        out, draw = [], random.Random(1)
        while len(out) < count:
            inputs = self.candidate(draw)
            self.margins = []
            self.truth(inputs)
            if min(self.margins, default=1) >= MARGIN:
                out.append(inputs)
        return out


class StackMachine(Recurrent):
    PUSH, MERGE = 0, 1

    def make_weights(self):
        d = self.dims["d"]
        return {"w_state": self.normal(d, 3 * d), "w_merge": self.normal(d, 2 * d), "w_action": self.normal(2, d)}

    def candidate(self, draw):
        words = self.dims["words"]
        return {"x": torch.randn(words, self.dims["d"]), "n": torch.tensor([draw.randint(1, words)], dtype=torch.int32)}

    def hold(self, inputs):
        super().hold(inputs)
        words, d = self.dims["words"], self.dims["d"]
        self.stack, self.h, self.y = (self.zeros(rows, d, dtype=torch.float32) for rows in (words + 1, 1, 1))
        self.read, self.height, self.merged, self.wish = (self.zeros(1) for _ in range(4))

    def load(self, inputs):
        super().load(inputs)
        self.n = int(inputs["n"])  # the host has it: it made the request

    def by_hand(self, w, x, n, decide):
        """A run whose counters the host keeps; `decide` takes the two scores and says what is done where both can be."""
        stack, h = x.new_zeros(len(x) + 1, x.shape[1]), x.new_zeros(1, x.shape[1])
        read = height = merged = 0
        while read < n or height > 1:
            at = min(read, n - 1)
            word, top, second = x[at:at + 1], stack[height:height + 1], stack[max(height - 1, 0):max(height - 1, 0) + 1]
            h = torch.tanh(torch.cat([h, top, word], 1) @ w["w_state"].T)
            action = self.PUSH if height < 2 else self.MERGE if read >= n else decide(h @ w["w_action"].T)
            if action == self.PUSH:
                read, height, new = read + 1, height + 1, word
            else:
                merged, height, new = merged + 1, height - 1, torch.tanh(torch.cat([second, top], 1) @ w["w_merge"].T)
            stack[height:height + 1] = new
        return {"y": stack[height:height + 1], "taken": torch.tensor([read, merged, height])}, read + merged

    def truth(self, inputs):
        def decide(scores):
            self.margins.append((scores[0, 0] - scores[0, 1]).abs().item())
            return scores.argmax().item()
        return self.by_hand(self.exact, inputs["x"].double(), int(inputs["n"]), decide)

    def eager(self):
        return self.by_hand(self.w, self.inputs["x"], self.n, lambda scores: scores.argmax().item())[0]

    def reset(self):
        for buffer in (self.stack, self.h, self.read, self.height, self.merged):
            buffer.zero_()

    def look(self):
        word = self.inputs["x"].index_select(0, torch.minimum(self.read, self.inputs["n"] - 1))
        top, second = self.stack.index_select(0, self.height), self.stack.index_select(0, (self.height - 1).clamp_min(0))
        self.h.copy_(torch.tanh(torch.cat([self.h, top, word], 1) @ self.w["w_state"].T))
        self.wish.copy_((self.h @ self.w["w_action"].T).argmax(-1))
        return word, torch.cat([second, top], 1)

    def merge_of(self, pair):
        return torch.tanh(pair @ self.w["w_merge"].T)

    def put(self, action, new):
        self.read += 1 if action == self.PUSH else 0
        self.merged += 1 if action == self.MERGE else 0
        self.height += 1 if action == self.PUSH else -1
        self.stack.index_copy_(0, self.height, new)

    def segments(self):
        """A graph looks, or does what was decided and looks again, or does it and ends."""
        word, pair = self.zeros(1, self.dims["d"], dtype=torch.float32), self.zeros(1, 2 * self.dims["d"], dtype=torch.float32)

        def look():
            for buffer, value in zip((word, pair), self.look()):
                buffer.copy_(value)
            self.tell(self.wish)

        def act(action):
            self.put(action, word if action == self.PUSH else self.merge_of(pair))

        begin = self.graph(lambda: (self.reset(), look()))
        go_on = [self.graph(lambda action=action: (act(action), look())) for action in (self.PUSH, self.MERGE)]
        end = [self.graph(lambda action=action: (act(action), self.y.copy_(self.stack.index_select(0, self.height)))) for action in (self.PUSH, self.MERGE)]

        def run():
            begin()
            read = height = merged = 0
            while True:
                action = self.PUSH if height < 2 else self.MERGE if read >= self.n else self.told()
                read, merged, height = (read + 1, merged, height + 1) if action == self.PUSH else (read, merged + 1, height - 1)
                if read >= self.n and height <= 1:
                    end[action]()
                    return {"y": self.y, "taken": torch.tensor([read, merged, height])}
                go_on[action]()
        return run

    def padded(self):
        def all_of_it():
            self.reset()
            n = self.inputs["n"].long()
            for _ in range(2 * self.dims["words"]):
                going = (self.read < n) | (self.height > 1)
                word, pair = self.look()
                push = (self.height < 2) | ((self.read < n) & (self.wish == self.PUSH))
                height = self.height + (2 * push.long() - 1) * going
                new = torch.where(push, word, self.merge_of(pair))
                self.stack.index_copy_(0, height, torch.where(going, new, self.stack.index_select(0, height)))
                self.read += push & going
                self.merged += ~push & going
                self.height.copy_(height)
            self.y.copy_(self.stack.index_select(0, self.height))
            return {"y": self.y, "taken": torch.cat([self.read, self.merged, self.height])}
        return self.graph(all_of_it)


class VaryingDepth(Recurrent):
    def make_weights(self):
        d = self.dims["d"]
        return {"w": self.normal(d, 2 * d), "w_halt": self.normal(1, d)}

    def candidate(self, draw):
        return {"x": torch.randn(self.dims["words"], self.dims["d"]), "limit": torch.randn(1) * 0.5}

    def hold(self, inputs):
        super().hold(inputs)
        self.h = self.zeros(1, self.dims["d"], dtype=torch.float32)

    def cell(self, w, word, h):
        h = torch.tanh(torch.cat([word, h], 1) @ w["w"].T)
        return h, (h @ w["w_halt"].T).reshape(1)

    def by_hand(self, w, x, decide):
        h, depths = x.new_zeros(1, x.shape[1]), []
        for t in range(self.dims["words"]):
            for depth in range(1, self.dims["thoughts"] + 1):
                h, halt = self.cell(w, x[t:t + 1], h)
                if depth < self.dims["thoughts"] and not decide(halt):
                    break
            depths.append(depth)
        return {"y": h, "depths": torch.tensor(depths)}, sum(depths)

    def truth(self, inputs):
        def decide(halt):
            self.margins.append((halt - inputs["limit"]).abs().item())
            return halt.item() > inputs["limit"].item()
        return self.by_hand(self.exact, inputs["x"].double(), decide)

    def eager(self):
        return self.by_hand(self.w, self.inputs["x"], lambda halt: (halt > self.inputs["limit"]).item())[0]

    def segments(self):
        def one(t, first):
            h, halt = self.cell(self.w, self.inputs["x"][t:t + 1], torch.zeros_like(self.h) if first else self.h)
            self.h.copy_(h)
            self.tell(halt > self.inputs["limit"])
        begin = self.graph(lambda: one(0, True))
        cells = [self.graph(lambda t=t: one(t, False)) for t in range(self.dims["words"])]

        def run():
            depths = []
            for t in range(self.dims["words"]):
                for depth in range(1, self.dims["thoughts"] + 1):
                    (begin if t == 0 and depth == 1 else cells[t])()
                    if depth < self.dims["thoughts"] and not self.told():
                        break
                depths.append(depth)
            return {"y": self.h, "depths": torch.tensor(depths)}
        return run

    def padded(self):
        def all_of_it():
            h, depths = torch.zeros_like(self.h), []
            for t in range(self.dims["words"]):
                depth = self.zeros(1)
                going = depth == 0
                for _ in range(self.dims["thoughts"]):
                    new, halt = self.cell(self.w, self.inputs["x"][t:t + 1], h)
                    h = torch.where(going, new, h)
                    depth = depth + going
                    going = going & (halt > self.inputs["limit"])
                depths.append(depth)
            return {"y": h, "depths": torch.cat(depths)}
        return self.graph(all_of_it)


class Sentence(Recurrent):
    """n words, and the host has n: it made the request."""

    def candidate(self, draw):
        words = self.dims["words"]
        return {"x": torch.randn(words, self.dims["d"]), "n": torch.tensor([draw.randint(1, words)], dtype=torch.int32)}

    def load(self, inputs):
        super().load(inputs)
        self.n = int(inputs["n"])

    def segments(self):
        graphs = [self.graph(lambda n=n: self.of_length(n)) for n in range(1, self.dims["words"] + 1)]
        return lambda: graphs[self.n - 1]()

    def padded(self):
        return self.graph(self.masked)


class BiRnn(Sentence):
    def make_weights(self):
        d = self.dims["d"]
        return {f"{kind}_{way}": self.normal(*shape, scale=scale) for way in ("forward", "backward") for kind, shape, scale in (("w", (d, 2 * d), None), ("b", (d,), 0.1))}

    def cell(self, w, way, word, h):
        return torch.tanh(F.linear(torch.cat([word, h], 1), w[f"w_{way}"], w[f"b_{way}"]))

    def both_ways(self, w, x, n):
        y, d = x.new_zeros(len(x), 2 * x.shape[1]), x.shape[1]
        h = g = x.new_zeros(1, d)
        for t in range(n):
            y[t:t + 1, :d] = h = self.cell(w, "forward", x[t:t + 1], h)
            y[n - 1 - t:n - t, d:] = g = self.cell(w, "backward", x[n - 1 - t:n - t], g)
        return {"y": y, "read": torch.tensor([n, n])}, n

    def truth(self, inputs):
        return self.both_ways(self.exact, inputs["x"].double(), int(inputs["n"]))

    def of_length(self, n):
        return self.both_ways(self.w, self.inputs["x"], n)[0]

    def eager(self):
        return self.of_length(self.n)

    def masked(self):
        x, n = self.inputs["x"], self.inputs["n"].long()
        ahead, back = torch.zeros_like(x), torch.zeros_like(x)
        h = g = torch.zeros_like(x[:1])
        for t in range(len(x)):
            going, at = n > t, (n - 1 - t).clamp_min(0)
            new = self.cell(self.w, "forward", x[t:t + 1], h)
            ahead[t:t + 1] = torch.where(going, new, 0.0)
            h = torch.where(going, new, h)
            g = torch.where(going, self.cell(self.w, "backward", x.index_select(0, at), g), g)
            back.index_copy_(0, at, g)  # once it has ended, the first word's again
        return {"y": torch.cat([ahead, back], 1), "read": n.repeat(2)}


class JoinedTree(Sentence):
    """Words are leaves; `join` says which of the pairs of neighbours is joined next, modulo how many there are. A node is one tensor or several, a row each."""

    def candidate(self, draw):
        return {**super().candidate(draw), "join": torch.tensor([draw.randrange(1000) for _ in range(self.dims["words"] - 1)], dtype=torch.int32)}

    def load(self, inputs):
        super().load(inputs)
        self.join = inputs["join"].tolist()

    def by_hand(self, w, inputs, n, join):
        leaves = self.leaves(w, inputs)
        roots = [tuple(part[i:i + 1] for part in leaves) for i in range(n)]
        for t in range(n - 1):
            at = join[t] % (n - 1 - t)
            roots[at:at + 2] = [self.joined(w, roots[at], roots[at + 1])]
        return {"y": self.seen(roots[0][0]), "joined": torch.tensor([n - 1])}, n - 1

    def truth(self, inputs):
        exact = {name: value.double() for name, value in inputs.items()}
        return self.by_hand(self.exact, exact, int(inputs["n"]), inputs["join"].tolist())

    def eager(self):
        return self.by_hand(self.w, self.inputs, self.n, self.join)[0]

    def grow(self, n, joins):
        """Nodes in rows, of which `roots` names those that are not part of another yet. n: a number, or a tensor, where joins that are not to be are masked."""
        words, known = self.dims["words"], isinstance(n, int)
        nodes = tuple(torch.cat([part, part.new_zeros(words - 1, *part.shape[1:])]) for part in self.leaves(self.w, self.inputs))
        places = torch.arange(words + 1, device=self.device)
        roots = places.clamp_max(words - 1)
        for t in range(joins):
            pairs = n - 1 - t
            at = self.inputs["join"][t:t + 1] % (pairs if known else pairs.clamp_min(1))
            left, right = (roots.index_select(0, at + i) for i in (0, 1))
            for part, new in zip(nodes, self.joined(self.w, tuple(part.index_select(0, left) for part in nodes), tuple(part.index_select(0, right) for part in nodes))):
                part[words + t:words + t + 1] = new
            moved = torch.where(places == at, words + t, roots.index_select(0, (places + (places > at)).clamp_max(words)))
            roots = moved if known else torch.where(pairs > 0, moved, roots)
        return {"y": self.seen(nodes[0].index_select(0, roots[:1])), "joined": torch.tensor([joins]) if known else n - 1}

    def of_length(self, n):
        return self.grow(n, n - 1)

    def masked(self):
        return self.grow(self.inputs["n"].long(), self.dims["words"] - 1)


class TreeLstm(JoinedTree):
    def make_weights(self):
        d = self.dims["d"]
        return {"w_leaf": self.normal(3 * d, d), "b_leaf": self.normal(3 * d, scale=0.1), "w_node": self.normal(5 * d, 2 * d), "b_node": self.normal(5 * d, scale=0.1)}

    def leaves(self, w, inputs):
        i, o, u = F.linear(inputs["x"], w["w_leaf"], w["b_leaf"]).chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c], 1),

    def joined(self, w, left, right):
        (left_h, left_c), (right_h, right_c) = left[0].chunk(2, 1), right[0].chunk(2, 1)
        i, o, u, f, e = F.linear(torch.cat([left_h, right_h], 1), w["w_node"], w["b_node"]).chunk(5, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * left_c + torch.sigmoid(e) * right_c
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c], 1),

    def seen(self, node):
        return node[:, :self.dims["d"]]


class MvRnn(JoinedTree):
    def make_weights(self):
        d = self.dims["d"]
        return {"w": self.normal(d, 2 * d), "w_matrix": self.normal(d, 2 * d)}

    def candidate(self, draw):
        return {**super().candidate(draw), "matrix": self.normal(self.dims["words"], self.dims["d"], self.dims["d"], scale=0.1)}

    def leaves(self, w, inputs):
        return inputs["x"], inputs["matrix"] + torch.eye(self.dims["d"], device=inputs["x"].device)

    def joined(self, w, left, right):
        (a, does_a), (b, does_b) = left, right
        return torch.tanh(torch.cat([a @ does_b[0].T, b @ does_a[0].T], 1) @ w["w"].T), (w["w_matrix"] @ torch.cat([does_a[0], does_b[0]], 0))[None]

    def seen(self, node):
        return node


class Drnn(Recurrent):
    """A tree that grows from its root: values say of each node whether it has children and whether a sibling follows."""

    def make_weights(self):
        d = self.dims["d"]
        return {"w": self.normal(d, 3 * d), "w_more": self.normal(2, d)}

    def candidate(self, draw):
        return {"code": torch.randn(1, self.dims["d"]), "limit": torch.randn(1) * 0.5}

    def hold(self, inputs):
        super().hold(inputs)
        most, d = self.dims["most"], self.dims["d"]
        self.states = self.zeros(most + 1, d, dtype=torch.float32)
        self.parents, self.before, self.size = self.zeros(most), self.zeros(most), self.zeros(1)
        self.places = torch.arange(most, device=self.device)

    def node(self, w, parent, sibling, code):
        h = torch.tanh(torch.cat([parent, sibling, code], 1) @ w["w"].T)
        return h, h @ w["w_more"].T

    def by_hand(self, w, code, decide):
        """A run whose tables the host keeps; `decide` takes the two scores and says which of them are above the limit."""
        most = self.dims["most"]
        states, parents, before, size, i = code.new_zeros(most + 1, code.shape[1]), [0] * most, [0] * most, 1, 0
        while i < size:
            states[i + 1:i + 2], scores = self.node(w, states[parents[i]][None], states[before[i]][None], code)
            child, following = decide(scores)
            if child and size < most:
                parents[size], size = i + 1, size + 1
            if following and size < most and i > 0:
                parents[size], before[size], size = parents[i], i + 1, size + 1
            i += 1
        return {"y": states[1:], "parents": torch.tensor(parents), "before": torch.tensor(before), "count": torch.tensor([size])}, size

    def truth(self, inputs):
        def decide(scores):
            self.margins += (scores[0] - inputs["limit"]).abs().tolist()
            return (scores[0] > inputs["limit"]).tolist()
        return self.by_hand(self.exact, inputs["code"].double(), decide)

    def eager(self):
        return self.by_hand(self.w, self.inputs["code"], lambda scores: (scores[0] > self.inputs["limit"]).tolist())[0]

    def reset(self):
        for buffer in (self.states, self.parents, self.before):
            buffer.zero_()
        self.size.fill_(1)

    def grow(self, i):
        """Node i, if there is one: `size` says."""
        most, there = self.dims["most"], self.size > i
        h, scores = self.node(self.w, self.states.index_select(0, self.parents[i:i + 1]), self.states.index_select(0, self.before[i:i + 1]), self.inputs["code"])
        self.states[i + 1:i + 2] = torch.where(there, h, 0.0)
        above = scores[0] > self.inputs["limit"]
        child = (above[:1] & there & (self.size < most)).long()
        following = (above[1:] & there & (self.size + child < most)).long() * (i > 0)
        first, then = (self.places == self.size) & (child > 0), (self.places == self.size + child) & (following > 0)
        self.parents.copy_(torch.where(first, i + 1, torch.where(then, self.parents[i:i + 1], self.parents)))
        self.before.copy_(torch.where(then, i + 1, self.before))
        self.size += child + following

    def results(self):
        return {"y": self.states[1:], "parents": self.parents, "before": self.before, "count": self.size}

    def segments(self):
        """A graph a node, which tells how many there are by then: the host waits where it has sent all that it knows of."""
        graphs = [self.graph(lambda i=i: (self.reset() if i == 0 else None, self.grow(i), self.tell(self.size))) for i in range(self.dims["most"])]

        def run():
            known, i = 1, 0
            while i < known:
                graphs[i]()
                i += 1
                if i == known:
                    known = self.told()
            return self.results()
        return run

    def padded(self):
        def all_of_it():
            self.reset()
            for i in range(self.dims["most"]):
                self.grow(i)
            return self.results()
        return self.graph(all_of_it)


NETS = {"early_exit": EarlyExit, "exit_per_layer": ExitPerLayer, "stack_machine": StackMachine, "varying_depth": VaryingDepth, "bi_rnn": BiRnn, "tree_lstm": TreeLstm,
        "mv_rnn": MvRnn, "drnn": Drnn}
