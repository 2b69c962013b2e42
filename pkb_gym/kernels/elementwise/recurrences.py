"""Naive kernels of gated delta rules over sequences that ranks share: a thread takes one column of a state."""

from __future__ import annotations

from pkb_gym.kernels.element_kernel import ElementKernel, Step, named, number

NORMS = """
Sum<T> q_squares = 0, k_squares = 0;
for (int64_t c = 0; c < K; ++c) {
  q_squares += Sum<T>(query[c]) * Sum<T>(query[c]);
  k_squares += Sum<T>(key[c]) * Sum<T>(key[c]);
}
const Sum<T> least = Sum<T>($eps), q_norm = sqrt(q_squares), k_norm = sqrt(k_squares);
const Sum<T> of_query = 1 / ((q_norm > least ? q_norm : least) * sqrt(Sum<T>(K)));
const Sum<T> of_key = 1 / (k_norm > least ? k_norm : least);
"""

UPDATE = """
Sum<T> read = 0, result = 0;  // decay, correct towards v along k, read out along q
for (int64_t c = 0; c < K; ++c) {
  column[c] *= $decay;
  read += column[c] * Sum<T>(key[c]) * of_key;
}
for (int64_t c = 0; c < K; ++c) {
  column[c] += $strength * ($value - read) * Sum<T>(key[c]) * of_key;
  result += column[c] * Sum<T>(query[c]) * of_query;
}
"""


def _indented(text: str, indent: int, **pieces: str) -> str:
    for name, piece in pieces.items():
        text = text.replace(f"${name}", piece)
    return text.strip("\n").replace("\n", "\n" + " " * indent)


GATED_DELTA_NET = ElementKernel(
    "GatedDeltaNetCP",
    idea="a thread runs the recurrence for one column of the state of a head from the beginning of the sequence, whose "
    "positions it reads from the ranks that have them",
    dtype_of="q",
    group="group",
    setup="""
    const pkb::Group members = comm.group(group);
    const int64_t B = v.size(0), Hv = v.size(2), D = v.size(3), K = q.size(3);
    """,
    workspace_type="Sum<T>",
    workspace=(("states", "B * Hv * D * K"),),
    steps=(
        Step(
            "recur",
            reads=("q", "k", "v", "gate", "beta", "a_log", "dt_bias"),
            writes=("y",),
            values=(
                number("L", "q.size(1)"),
                number("Hq", "q.size(2)"),
                number("Hv", "Hv"),
                number("K", "K"),
                number("D", "D"),
                ("Sum<T>*", "states", "states"),
                ("pkb::Group", "members", "members"),
            ),
            body=f"""
            const int64_t e = i % D, head = i / D % Hv, b = i / (D * Hv), local = Hv / members.size;
            const int owner = members.ranks[head / local];  // of the head
            const Sum<T> rate = exp(Sum<T>(comm.peer(a_log, owner)[head % local]));
            const Sum<T> bias = Sum<T>(comm.peer(dt_bias, owner)[head % local]);
            Sum<T>* column = states + i * K;
            for (int64_t c = 0; c < K; ++c) column[c] = 0;
            for (int64_t t = 0; t < (members.rank + 1) * L; ++t) {{
              const int r = members.ranks[t / L];
              const int64_t token = b * L + t % L, of_head = token * Hv + head;
              const int64_t at = (token * Hq + head / (Hv / Hq)) * K;
              const T *query = comm.peer(q, r) + at, *key = comm.peer(k, r) + at;
              {_indented(NORMS, 14, eps="1e-6")}
              const Sum<T> x = Sum<T>(comm.peer(gate, r)[of_head]) + bias;
              const Sum<T> decay = exp(-rate * (x > 20 ? x : Sum<T>(log(1 + exp(x)))));
              const Sum<T> strength = Sum<T>(comm.peer(beta, r)[of_head]);
              const Sum<T> value = Sum<T>(comm.peer(v, r)[of_head * D + e]);
              {_indented(UPDATE, 14, decay="decay", strength="strength", value="value")}
              if (t >= members.rank * L) y[of_head * D + e] = T(result);
            }}
            """,
            calls=((named("q", "k", "v", "gate", "beta", "a_log", "dt_bias", y="out"), "B * Hv * D"),),
        ),
    ),
)

KIMI_DELTA = ElementKernel(
    "KimiDeltaAttention",
    idea="a thread runs the recurrence for one column of the state of a head from the beginning of the sequence, for "
    "each rank whose outputs are summed, and reads positions from the ranks that have them",
    dtype_of="q",
    setup="""
    const pkb::Group context = comm.group(cp_group);
    const pkb::Group terms = tp_group < 0 ? pkb::Group{1, 0, {comm.rank}} : comm.group(tp_group);
    const int64_t B = v.size(0), H = v.size(2), D = v.size(3), K = q.size(3);
    """,
    workspace_type="Sum<T>",
    workspace=(("states", "B * H * D * K"),),
    steps=(
        Step(
            "recur",
            reads=("q", "k", "v", "g", "beta", "a_log", "dt_bias"),
            writes=("y",),
            values=(
                number("L", "q.size(1)"),
                number("H", "H"),
                number("K", "K"),
                number("D", "D"),
                ("Sum<T>*", "states", "states"),
                ("pkb::Group", "context", "context"),
                ("pkb::Group", "terms", "terms"),
            ),
            body=f"""
            const int64_t e = i % D, head = i / D % H, b = i / (D * H);
            Sum<T>* column = states + i * K;
            for (int term = 0; term < terms.size; ++term) {{
              const int own = terms.ranks[term], first = own - comm.rank;
              const Sum<T> rate = exp(Sum<T>(comm.peer(a_log, own)[head]));
              const T* bias = comm.peer(dt_bias, own) + head * K;
              for (int64_t c = 0; c < K; ++c) column[c] = 0;
              for (int64_t t = 0; t < (context.rank + 1) * L; ++t) {{
                const int r = first + context.ranks[t / L];
                const int64_t of_head = (b * L + t % L) * H + head;
                const T *query = comm.peer(q, r) + of_head * K, *key = comm.peer(k, r) + of_head * K;
                const T* gate = comm.peer(g, r) + of_head * K;
                {_indented(NORMS, 16, eps="1e-12")}
                const Sum<T> strength = 1 / (1 + exp(-Sum<T>(comm.peer(beta, r)[of_head])));
                const Sum<T> value = Sum<T>(comm.peer(v, r)[of_head * D + e]);
                const auto decay = [&](int64_t c) {{
                  return Sum<T>(exp(-5 / (1 + exp(-rate * (Sum<T>(gate[c]) + Sum<T>(bias[c]))))));
                }};
                {_indented(UPDATE, 16, decay="decay(c)", strength="strength", value="value")}
                if (t >= context.rank * L) {{
                  T& place = y[of_head * D + e];
                  place = T(term ? Sum<T>(place) + result : result);
                }}
              }}
            }}
            """,
            calls=((named("q", "k", "v", "g", "beta", "a_log", "dt_bias", y="out"), "B * H * D"),),
        ),
    ),
)

RECURRENCES = (GATED_DELTA_NET, KIMI_DELTA)
