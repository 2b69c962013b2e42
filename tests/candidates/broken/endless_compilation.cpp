// expect: compile_error longer than 1 s
// compile_timeout_s: 1
// The file includes itself twice, and so on: 2^190 times.
#if __INCLUDE_LEVEL__ < 190
#include __FILE__
#include __FILE__
#endif

void solution() {}
