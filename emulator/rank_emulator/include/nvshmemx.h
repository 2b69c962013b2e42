// The functions of nvshmemx.h are in nvshmem.h.
#pragma once
#include "nvshmem.h"
