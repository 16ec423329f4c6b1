// Stands in for mpi_comm.cc in a build without MPI.
#include "comm/mpi_comm.h"

namespace weft {

bool mpi_available() { return false; }

Result<std::unique_ptr<MpiWorld>> MpiWorld::start(const MpiOptions&) {
  return invalid_argument(
      "this weft was built without MPI: install an MPI library (Debian: libopenmpi-dev, or libmpich-dev) and configure "
      "again "
      "with -DWEFT_MPI=ON, or run the ranks as threads");
}

}  // namespace weft
