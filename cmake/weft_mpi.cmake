# MPI is optional. WEFT_MPI: AUTO uses it if it is found, ON insists, OFF leaves it out. Sets WEFT_HAVE_MPI.
#
# FindMPI takes the mpicxx and mpiexec of the path (Debian: OpenMPI). Another implementation beside it is chosen by
#   -DMPI_CXX_COMPILER=mpicxx.mpich -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.mpich
set(WEFT_MPI AUTO CACHE STRING "Ranks as MPI processes: AUTO, ON or OFF")
set_property(CACHE WEFT_MPI PROPERTY STRINGS AUTO ON OFF)

set(WEFT_HAVE_MPI OFF)
if(WEFT_MPI STREQUAL "ON")
  find_package(MPI REQUIRED COMPONENTS CXX)
elseif(WEFT_MPI STREQUAL "AUTO")
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(MPI_CXX_FOUND AND NOT WEFT_MPI STREQUAL "OFF")
  set(WEFT_HAVE_MPI ON)
endif()
