// One step of Adam for a parameter in registers, in float32: a kernel that has the gradient at hand calls it where it
// would store it. Bound: memory, four reads and up to three writes of each element, beside which its arithmetic is free.
//
// Formula: D. P. Kingma, J. Ba, Adam: A Method for Stochastic Optimization, arXiv:1412.6980, algorithm 1; the decay is
// decoupled as in I. Loshchilov, F. Hutter, arXiv:1711.05101, algorithm 2.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace pkb {

struct Adam {
  float lr, beta1, beta2, eps;
  float kept;                  // share of the parameter that the decay leaves
  float correction1, correction2;  // what the moments are multiplied by

  // `step` is the number of this step, from 1.
  static Adam of(double lr, double beta1, double beta2, double eps, int64_t step, double weight_decay = 0.0) {
    return Adam{float(lr),
                float(beta1),
                float(beta2),
                float(eps),
                float(1.0 - lr * weight_decay),
                float(1.0 / (1.0 - std::pow(beta1, double(step)))),
                float(1.0 / (1.0 - std::pow(beta2, double(step))))};
  }

  // The updated parameter; updates both moments.
  __device__ __forceinline__ float update(float parameter, float gradient, float& moment, float& square) const {
    moment = beta1 * moment + (1.0f - beta1) * gradient;
    square = beta2 * square + (1.0f - beta2) * gradient * gradient;
    const float root = sqrtf(square * correction2) + eps;
    return kept * parameter - lr * __fdividef(moment * correction1, root);
  }
};

}  // namespace pkb
