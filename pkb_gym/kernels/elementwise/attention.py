"""Naive kernels for attention over sequences and heads that ranks share: every rank reads what it needs in place."""

from __future__ import annotations

from collections.abc import Mapping

from pkb_gym.kernels.element_kernel import ElementKernel, Step, named, number

SCALE = """
const double scale = softmax_scale.has_value() ? softmax_scale.value() : 1 / std::sqrt(double(d));
"""

ADD_KEY = """
if (t == first || score > most) {  // sums so far are relative to the largest score so far
  const Sum<T> shrink = t == first ? Sum<T>(0) : Sum<T>(exp(most - score));
  sum *= shrink;
  value *= shrink;
  most = score;
}
const Sum<T> weight = exp(score - most);
sum += weight;
value += weight * Sum<T>($value);
"""
"""One key of an online softmax, with `score`, `most`, `sum` and `value`, of the keys from `first` on."""


def _add_key(value: str, indent: str) -> str:
    return ADD_KEY.strip("\n").replace("$value", value).replace("\n", f"\n{indent}")


RING_ATTENTION = ElementKernel(
    "RingAttention",
    idea="every element of the output passes over its keys and values, which it reads from the ranks that have them",
    dtype_of="q",
    group="group",
    setup="""
    const pkb::Group members = comm.group(group);
    const int64_t d = q.size(3);
    """
    + SCALE,
    steps=(
        Step(
            "attend",
            reads=("q", "k", "v"),
            writes=("y",),
            values=(
                number("S", "q.size(1)"),
                number("h", "q.size(2)"),
                number("d", "d"),
                ("double", "scale", "scale"),
                ("bool", "causal", "causal"),
                ("pkb::Group", "members", "members"),
            ),
            body=f"""
            const int64_t e = i % d, head = i / d % h, s = i / (d * h) % S, b = i / (d * h * S), first = 0;
            const int64_t keys = causal ? members.rank * S + s + 1 : members.size * S;
            Sum<T> most = 0, sum = 0, value = 0;
            for (int64_t t = first; t < keys; ++t) {{
              const int r = members.ranks[t / S];
              const int64_t row = ((b * S + t % S) * h + head) * d;
              const T* key = comm.peer(k, r) + row;
              Sum<T> score = 0;
              for (int64_t c = 0; c < d; ++c) score += Sum<T>(q[i - e + c]) * Sum<T>(key[c]);
              score *= Sum<T>(scale);
              {_add_key("comm.peer(v, r)[row + e]", " " * 14)}
            }}
            y[i] = T(value / sum);
            """,
            calls=(({"q": "q", "k": "k", "v": "v", "y": "out"}, "out.numel()"),),
        ),
    ),
)

RING_ATTENTION_TP = ElementKernel(
    "RingAttentionTP",
    idea="every rank projects all positions that it sees with the weights of all heads, which it reads in place, "
    "attends to them, and multiplies by the weights of all heads again",
    dtype_of="hidden_states",
    setup="""
    const pkb::Group tensor = comm.group(tp_group), context = comm.group(cp_group);
    const int64_t B = hidden_states.size(0), S = hidden_states.size(1), D = hidden_states.size(2);
    const int64_t width = w_o.size(1), d = width * tensor.size / num_heads;  // width: of the heads of one rank
    const int64_t tokens = context.size * B * S, all = width * tensor.size;
    """
    + SCALE,
    workspace=(("qkv", "3 * tokens * all"), ("attended", "B * S * all")),
    steps=(
        Step(
            "project",
            reads=("x", "weight"),
            writes=("y",),
            values=(
                number("tokens", "B * S"),
                number("D", "D"),
                number("width", "width"),
                ("pkb::Group", "tensor", "tensor"),
                ("pkb::Group", "context", "context"),
            ),
            body="""
            // Rows are positions of all ranks of the context group; columns queries, keys and values of all heads.
            const int64_t all = width * tensor.size, column = i % (3 * all), row = i / (3 * all), within = column % all;
            const T* token = comm.peer(x, context.ranks[row / tokens]) + row % tokens * D;
            const T* of_column = comm.peer(weight, tensor.ranks[within / width]) +
                                 (column / all * width + within % width) * D;
            Sum<T> sum = 0;
            for (int64_t k = 0; k < D; ++k) sum += Sum<T>(token[k]) * Sum<T>(of_column[k]);
            y[i] = T(sum);
            """,
            calls=(({"x": "hidden_states", "weight": "w_qkv", "y": "qkv"}, "3 * tokens * all"),),
        ),
        Step(
            "attend",
            reads=("qkv",),
            writes=("y",),
            values=(
                number("B", "B"),
                number("S", "S"),
                number("d", "d"),
                number("all", "all"),
                ("double", "scale", "scale"),
                ("bool", "causal", "causal"),
                ("pkb::Group", "context", "context"),
            ),
            body=f"""
            const int64_t column = i % all, s = i / all % S, b = i / (all * S), head = column / d * d, first = 0;
            const int64_t keys = causal ? context.rank * S + s + 1 : context.size * S;
            const T* query = qkv + ((context.rank * B + b) * S + s) * 3 * all + head;
            Sum<T> most = 0, sum = 0, value = 0;
            for (int64_t t = first; t < keys; ++t) {{
              const T* key = qkv + ((t / S * B + b) * S + t % S) * 3 * all + all + head;
              Sum<T> score = 0;
              for (int64_t c = 0; c < d; ++c) score += Sum<T>(query[c]) * Sum<T>(key[c]);
              score *= Sum<T>(scale);
              {_add_key("key[all + column - head]", " " * 14)}
            }}
            y[i] = T(value / sum);
            """,
            calls=(({"qkv": "qkv", "y": "attended"}, "B * S * all"),),
        ),
        Step(
            "multiply",
            reads=("x", "weight"),
            writes=("y",),
            values=(number("width", "width"), number("D_out", "w_o.size(0)"), ("pkb::Group", "tensor", "tensor")),
            body="""
            const int64_t column = i % D_out, row = i / D_out;
            Sum<T> sum = 0;
            for (int place = 0; place < tensor.size; ++place) {
              const T* part = x + (row * tensor.size + place) * width;
              const T* of_column = comm.peer(weight, tensor.ranks[place]) + column * width;
              for (int64_t k = 0; k < width; ++k) sum += Sum<T>(part[k]) * Sum<T>(of_column[k]);
            }
            y[i] = T(sum);
            """,
            calls=(({"x": "attended", "weight": "w_o", "y": "out"}, "out.numel()"),),
        ),
    ),
)

BACKWARD_VALUES = (
    number("S", "q.size(1)"),
    number("h", "q.size(2)"),
    number("d", "d"),
    ("double", "scale", "scale"),
    ("bool", "causal", "causal"),
    ("const float*", "lse", "static_cast<const float*>(softmax_lse.data_ptr())"),
    ("pkb::Group", "context", "context"),
    ("pkb::Group", "replicas", "replicas"),
)

SCORE_GRADIENT = """
Sum<T> score = 0, slope = 0;  // of the score, and by what it is weighted
for (int64_t c = 0; c < d; ++c) {
  score += Sum<T>(query[c]) * Sum<T>(key[c]);
  slope += Sum<T>(gradient[c]) * (Sum<T>(value[c]) - Sum<T>(result[c]));
}
const Sum<T> weight = exp(Sum<T>(scale) * score - Sum<T>(comm.peer(lse, $queries)[$of_query]));
"""


def _score_gradient(queries: str, of_query: str, indent: str) -> str:
    text = SCORE_GRADIENT.strip("\n").replace("$queries", queries).replace("$of_query", of_query)
    return text.replace("\n", f"\n{indent}")


RING_ATTENTION_BACKWARD = ElementKernel(
    "RingAttentionBackwardDP",
    idea="every element of a gradient passes over the keys or queries that it depends on, in all replicas, which it "
    "reads in place",
    dtype_of="q",
    setup="""
    const pkb::Group context = comm.group(cp_group);
    const pkb::Group replicas = dp_group < 0 ? pkb::Group{1, 0, {comm.rank}} : comm.group(dp_group);
    const int64_t d = q.size(3);
    """
    + SCALE,
    steps=(
        Step(
            "differentiate_queries",
            reads=("q", "k", "v", "dout", "out"),
            writes=("dq",),
            values=BACKWARD_VALUES,
            body=f"""
            const int64_t e = i % d, head = i / d % h, s = i / (d * h) % S, b = i / (d * h * S);
            const int64_t keys = causal ? context.rank * S + s + 1 : context.size * S;
            Sum<T> sum = 0;
            for (int replica = 0; replica < replicas.size; ++replica) {{
              const int own = replicas.ranks[replica], first = own - comm.rank;
              const T *query = comm.peer(q, own) + i - e, *gradient = comm.peer(dout, own) + i - e;
              const T* result = comm.peer(out, own) + i - e;
              for (int64_t t = 0; t < keys; ++t) {{
                const int r = first + context.ranks[t / S];
                const int64_t row = ((b * S + t % S) * h + head) * d;
                const T *key = comm.peer(k, r) + row, *value = comm.peer(v, r) + row;
                {_score_gradient("own", "(b * h + head) * S + s", " " * 16)}
                sum += weight * slope * Sum<T>(key[e]);
              }}
            }}
            dq[i] = T(Sum<T>(scale) * sum / replicas.size);
            """,
            calls=((named("q", "k", "v", "dout", "out", "dq"), "dq.numel()"),),
        ),
        Step(
            "differentiate_keys_and_values",
            reads=("q", "k", "v", "dout", "out"),
            writes=("dk", "dv"),
            values=BACKWARD_VALUES,
            body=f"""
            const int64_t e = i % d, head = i / d % h, s = i / (d * h) % S, b = i / (d * h * S);
            Sum<T> by_key = 0, by_value = 0;
            for (int replica = 0; replica < replicas.size; ++replica) {{
              const int own = replicas.ranks[replica], first = own - comm.rank;
              const T *key = comm.peer(k, own) + i - e, *value = comm.peer(v, own) + i - e;
              for (int64_t t = causal ? context.rank * S + s : 0; t < context.size * S; ++t) {{
                const int r = first + context.ranks[t / S];
                const int64_t row = ((b * S + t % S) * h + head) * d;
                const T *query = comm.peer(q, r) + row, *gradient = comm.peer(dout, r) + row;
                const T* result = comm.peer(out, r) + row;
                {_score_gradient("r", "(b * h + head) * S + t % S", " " * 16)}
                by_key += weight * slope * Sum<T>(query[e]);
                by_value += weight * Sum<T>(gradient[e]);
              }}
            }}
            dk[i] = T(Sum<T>(scale) * by_key / replicas.size);
            dv[i] = T(by_value / replicas.size);
            """,
            calls=((named("q", "k", "v", "dout", "out", "dk", "dv"), "dk.numel()"),),
        ),
    ),
)


def _linear(name: str, depth: str, columns: str, call: tuple[Mapping[str, str], str]) -> Step:
    """A product of rows with the rows of a weight, within a rank."""
    return Step(
        name,
        reads=("x", "weight"),
        writes=("y",),
        values=(number("depth", depth), number("columns", columns)),
        body="""
        const T *row = x + i / columns * depth, *column = weight + i % columns * depth;
        Sum<T> sum = 0;
        for (int64_t k = 0; k < depth; ++k) sum += Sum<T>(row[k]) * Sum<T>(column[k]);
        y[i] = T(sum);
        """,
        calls=(call,),
    )


ULYSSES_ATTENTION = ElementKernel(
    "UlyssesAttention",
    idea="tokens do not mix, so that every rank attends within each of its own, and nothing has to move",
    dtype_of="hidden_states",
    group="group",
    setup="""
    const int64_t tokens = hidden_states.size(0) * hidden_states.size(1), H = hidden_states.size(2);
    const int64_t width = w_o.size(1), d = width / num_heads, together = num_heads / comm.group(group).size;
    const bool is_masked = causal && tokens / hidden_states.size(0) * comm.group(group).size > 1;
    """,
    workspace=(("qkv", "3 * tokens * width"), ("attended", "tokens * width")),
    steps=(
        _linear(
            "multiply", "H", "3 * width", ({"x": "hidden_states", "weight": "w_qkv", "y": "qkv"}, "3 * tokens * width")
        ),
        Step(
            "attend",
            reads=("qkv",),
            writes=("y",),
            values=(
                number("width", "width"),
                number("d", "d"),
                number("together", "together"),
                ("bool", "is_masked", "is_masked"),
            ),
            body=f"""
            // Heads of one rank attend to each other.
            const int64_t column = i % width, head = column / d, first = head / together * together;
            const int64_t end = is_masked ? head + 1 : first + together;
            const T* token = qkv + i / width * 3 * width;
            Sum<T> most = 0, sum = 0, value = 0;
            for (int64_t t = first; t < end; ++t) {{
              const T *query = token + head * d, *key = token + width + t * d;
              Sum<T> score = 0;
              for (int64_t c = 0; c < d; ++c) score += Sum<T>(query[c]) * Sum<T>(key[c]);
              score /= sqrt(Sum<T>(d));
              {_add_key("key[width + column % d]", " " * 14)}
            }}
            y[i] = T(value / sum);
            """,
            calls=(({"qkv": "qkv", "y": "attended"}, "tokens * width"),),
        ),
        _linear("project", "width", "w_o.size(0)", ({"x": "attended", "weight": "w_o", "y": "out"}, "out.numel()")),
    ),
)

CSO_ATTENTION = ElementKernel(
    "CSOAttention",
    idea="every element of the output passes over the keys and values of its range, which it reads from the ranks that "
    "have them",
    dtype_of="query",
    group="group",
    setup="""
    const pkb::Group members = comm.group(group);
    const int64_t R = cp_shuffle_num, m = query.size(0) / R, Hq = query.size(1), Hk = key_value.size(1);
    const int64_t given = clip_token_nums.has_value() ? clip_token_nums.value() : 0;
    const int64_t clip = given > 0 ? given : members.size * m;
    """,
    steps=(
        Step(
            "attend",
            reads=("query", "key_value"),
            writes=("y",),
            values=(
                number("m", "m"),
                number("clip", "clip"),
                number("Hq", "Hq"),
                number("Hk", "Hk"),
                number("D", "query.size(2)"),
                ("const int64_t*", "ranges", "static_cast<const int64_t*>(k_ranges.data_ptr())"),
                ("pkb::Group", "members", "members"),
            ),
            body=f"""
            const int64_t e = i % D, head = i / D % Hq, range = i / (D * Hq * m), first = ranges[2 * range];
            Sum<T> most = 0, sum = 0, value = 0;
            for (int64_t t = first; t < ranges[2 * range + 1]; ++t) {{
              const int64_t slot = t % clip, row = t / clip * m + slot % m;
              const T* key = comm.peer(key_value, members.ranks[slot / m]) + (row * Hk + head / (Hq / Hk)) * 2 * D;
              Sum<T> score = 0;
              for (int64_t c = 0; c < D; ++c) score += Sum<T>(query[i - e + c]) * Sum<T>(key[c]);
              score /= sqrt(Sum<T>(D));
              {_add_key("key[D + e]", " " * 14)}
            }}
            y[i] = T(sum > 0 ? value / sum : sum);
            """,
            calls=(({"query": "query", "key_value": "key_value", "y": "out"}, "out.numel()"),),
        ),
    ),
)

ATTENTION = (RING_ATTENTION, RING_ATTENTION_TP, RING_ATTENTION_BACKWARD, ULYSSES_ATTENTION, CSO_ATTENTION)
