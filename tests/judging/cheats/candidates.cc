// A candidate's function; the macro CANDIDATE is its file.
#include "common.h"

namespace candidate {
#include CANDIDATE
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch, candidate::launch);
