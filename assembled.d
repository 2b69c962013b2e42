/tmp/ccedV0N9.o: joined50.cpp /tmp/cc80P6dQ.s
