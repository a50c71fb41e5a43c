// What the handlers of several calls share: batches of any rank, types, and the errors of an answer.
#pragma once
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "paths.h"
#include "xla_pool.h"

namespace tropical {

namespace ffi = xla::ffi;

// The axes before the `ranks` last ones of each operand. False where they do not fit.
inline bool read_batch(const std::vector<ffi::AnyBuffer>& operands, const std::vector<size_t>& ranks, Batch& batch) {
  const size_t axes = operands[0].dimensions().size() - ranks[0];
  batch.sizes.assign(axes, 1);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].dimensions().size() != ranks[i] + axes) return false;
    for (size_t axis = 0; axis < axes; ++axis)
      if (operands[i].dimensions()[axis] != 1) batch.sizes[axis] = operands[i].dimensions()[axis];
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    std::vector<int64_t> strides(axes, 0);
    int64_t stride = 1;
    for (size_t axis = axes; axis-- > 0;) {
      const int64_t size = operands[i].dimensions()[axis];
      if (size != 1 && size != batch.sizes[axis]) return false;
      if (size != 1) strides[axis] = stride;
      stride *= size;
    }
    batch.strides.push_back(std::move(strides));
  }
  return true;
}

inline bool type_of(const ffi::AnyBuffer& x, Type& type) {
  if (x.element_type() == ffi::DataType::F32) type = Type::kF32;
  else if (x.element_type() == ffi::DataType::F64) type = Type::kF64;
  else if (x.element_type() == ffi::DataType::S32) type = Type::kI32;
  else return false;
  return true;
}

// Runs a question; its text is empty where there is an answer.
template <class Run>
ffi::Error answered(const char* name, const Run& run) {
  try {
    const std::string problem = run();
    return problem.empty() ? ffi::Error::Success() : invalid(std::string(name) + ": " + problem);
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, std::string("tropical ") + name + ": no memory");
  }
}

template <class Run>
int answered_now(char* text, const Run& run) {
  try {
    const std::string problem = run();
    std::strncpy(text, problem.c_str(), 199);
    return problem.empty() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}

}  // namespace tropical
