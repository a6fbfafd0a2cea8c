# cmake --build BUILD --target package builds dtd_VERSION_ARCH.deb, and one package for each kind of module that was built:
# dtd-ucx_VERSION_ARCH.deb, dtd-hdf5_VERSION_ARCH.deb, dtd-report_VERSION_ARCH.deb and dtd-cuda_VERSION_ARCH.deb.
# Files that only a package installs belong to the component `service`, so that `cmake --install` needs no root.
set(service COMPONENT service EXCLUDE_FROM_ALL)
install(FILES deploy/systemd/dtd.service DESTINATION lib/systemd/system ${service})
install(FILES deploy/systemd/sysusers.conf DESTINATION lib/sysusers.d RENAME dtd.conf ${service})
install(FILES deploy/systemd/tmpfiles.conf DESTINATION lib/tmpfiles.d RENAME dtd.conf ${service})
install(FILES deploy/systemd/dtd.yaml DESTINATION /etc/dtd ${service})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME dtd)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "dtd maintainers <root@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training daemon for transformers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL programs service)
set(CPACK_COMPONENT_PROGRAMS_GROUP dtd)
set(CPACK_COMPONENT_SERVICE_GROUP dtd)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DTD_PACKAGE_NAME dtd)
set(CPACK_DEBIAN_DTD_FILE_NAME DEB-DEFAULT)
set(CPACK_COMPONENT_GROUP_DTD_DESCRIPTION "Trains transformers on any number of nodes. A job can resume with a different number.
 The package has the daemon, which restarts jobs after failures and writes their checkpoints, its workers, the client, and a
 service for all users of a machine.")
set(CPACK_DEBIAN_DTD_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DTD_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
set(CPACK_DEBIAN_DTD_PACKAGE_RECOMMENDS systemd)
set(CPACK_DEBIAN_DTD_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prerm"
    "${CMAKE_SOURCE_DIR}/deploy/debian/postrm;${CMAKE_SOURCE_DIR}/deploy/debian/conffiles")
set(CPACK_DEBIAN_DTD_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# The packages of modules. dpkg-shlibdeps adds libucx0 to the dependencies of dtd-ucx, libhdf5 to
# those of dtd-hdf5, and pango and cairo to those of dtd-report. It is not run for dtd-cuda: NVIDIA's
# libraries are in no Debian package of main, so it would fail. A module fits only the programs of its own version.
set(CPACK_COMPONENT_UCX_DESCRIPTION "Module of dtd for InfiniBand and other networks of UCX (run.comm: ucx)")
set(CPACK_DEBIAN_UCX_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_HDF5_DESCRIPTION "Module of dtd that reads training data in HDF5 files")
set(CPACK_DEBIAN_HDF5_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_REPORT_DESCRIPTION "Module of dtd that writes reports of jobs as PDF (dtctl report)")
set(CPACK_DEBIAN_REPORT_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_CUDA_DESCRIPTION "Modules of dtd for NVIDIA GPUs (run.device: cuda)")
get_property(packages GLOBAL PROPERTY DTD_MODULE_PACKAGES)
list(REMOVE_DUPLICATES packages)
foreach(package IN LISTS packages)
  string(TOUPPER ${package} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME dtd-${package})
  set(CPACK_DEBIAN_${upper}_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "dtd (= ${PROJECT_VERSION})")
endforeach()
string(APPEND CPACK_DEBIAN_REPORT_PACKAGE_DEPENDS ", fonts-dejavu-core") # the font of the pages
include(CPack)
