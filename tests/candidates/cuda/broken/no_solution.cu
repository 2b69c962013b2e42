// expect: load_error exports no `solution`; TVM_FFI_DLL_EXPORT_TYPED_FUNC
// A kernel of that name, and nothing that the engine could call.
__global__ void solution(float* out) { out[threadIdx.x] = 1; }

void launch(float* out) { solution<<<1, 32>>>(out); }
