"use strict";
// Sources in colours. Each pattern consumes what it begins to match, to the end of the text if need be: no source,
// however hostile, takes more than one pass.
const CPP_WORDS = `alignas alignof asm auto break case catch class const constexpr const_cast continue co_await co_return
  decltype default delete do dynamic_cast else enum explicit extern false final for friend goto if inline mutable
  namespace new noexcept nullptr operator override private protected public reinterpret_cast requires return sizeof
  static static_assert static_cast struct switch template this thread_local throw true try typedef typename union using
  virtual volatile while __device__ __global__ __host__ __shared__ __constant__ __forceinline__ __launch_bounds__
  __restrict__ __syncthreads`;
const CPP_TYPES = `bool char char16_t char32_t double float half int int8_t int16_t int32_t int64_t long ptrdiff_t short
  signed size_t uint8_t uint16_t uint32_t uint64_t uintptr_t unsigned void wchar_t __half __nv_bfloat16 bfloat16 dim3
  cudaStream_t`;
const PYTHON_WORDS = `False None True and as assert async await break class continue def del elif else except finally for
  from global if import in is lambda match nonlocal not or pass raise return try while with yield`;
const PYTHON_TYPES = "bool bytes dict float frozenset int list object set str tuple";

const END = String.raw`(?![^])`, NUMBER = String.raw`(?<number>\b\d[\w.']*)`, WORD = String.raw`(?<word>[A-Za-z_]\w*)`;
const QUOTED = String.raw`"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?`;
const LANGUAGES = {
  cpp: {
    pattern: [
      String.raw`(?<comment>//[^\n]*|/\*[^]*?(?:\*/|${END}))`,
      String.raw`(?<preprocessor>(?<=^[ \t]*)#(?:[^\n\\/]|\\\n|\\|/(?![/*]))*)`,
      String.raw`(?<string>\b(?:u8|[uUL])?R"(?<mark>[^()\\\s"]{0,16})\([^]*?(?:\)\k<mark>"|${END})|${QUOTED})`,
      NUMBER, WORD,
    ].join("|"),
    words: new Set(CPP_WORDS.split(/\s+/)), types: new Set(CPP_TYPES.split(/\s+/)),
  },
  python: {
    pattern: [
      String.raw`(?<comment>#[^\n]*)`,
      String.raw`(?<preprocessor>(?<=^[ \t]*)@[\w.]+)`,
      String.raw`(?<string>(?:\b[rbfuRBFU]{1,2})?(?:"""[^]*?(?:"""|${END})|'''[^]*?(?:'''|${END})|${QUOTED}))`,
      NUMBER, WORD,
    ].join("|"),
    words: new Set(PYTHON_WORDS.split(/\s+/)), types: new Set(PYTHON_TYPES.split(/\s+/)),
  },
};

// The kind and the text of each piece; their texts put together are the source.
function coloursOf(source, isPython) {
  const language = isPython ? LANGUAGES.python : LANGUAGES.cpp;
  const pieces = [];
  let end = 0;
  for (const match of source.matchAll(new RegExp(language.pattern, "gm"))) {
    const kind = kindOf(match, language, source);
    if (!kind) continue;
    if (match.index > end) pieces.push([null, source.slice(end, match.index)]);
    pieces.push([kind, match[0]]);
    end = match.index + match[0].length;
  }
  pieces.push([null, source.slice(end)]);
  return pieces;
}

function kindOf(match, language, source) {
  const { word } = match.groups;
  if (word === undefined) return ["comment", "preprocessor", "string", "number"].find((kind) => match.groups[kind] !== undefined);
  if (language.words.has(word)) return "keyword";
  if (language.types.has(word)) return "type";
  return source[match.index + word.length] === "(" ? "name" : null;
}
