"""Programs whose values decide what is computed, in PyTorch: what control_flow.py puts beside ours (spec/examples/early_exit, exit_per_layer,
stack_machine, varying_depth), with the weights and inputs that it gives to both.

Each net has three ways to run, all over buffers that stay where they are: `eager`, which asks for a value (`item()`) where it has to decide;
`segments`, a CUDA graph for what lies between two decisions, the value that decides copied to pinned memory at its end, no wait for a value that
cannot change what comes next; `padded`, one CUDA graph of all that might be computed, values that do not count masked. Without CUDA the graphs are plain calls.
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


NETS = {"early_exit": EarlyExit, "exit_per_layer": ExitPerLayer, "stack_machine": StackMachine, "varying_depth": VaryingDepth}
