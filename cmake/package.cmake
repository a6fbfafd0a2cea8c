# cmake --build BUILD --target package builds dtd_VERSION_ARCH.deb, and dtd-cuda_VERSION_ARCH.deb if the GPU modules were built.
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

# NVIDIA's CUDA libraries are in no Debian package of main, so dpkg-shlibdeps cannot find their packages and is not run.
get_property(modules GLOBAL PROPERTY DTD_MODULES)
if(modules)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME dtd-cuda)
  set(CPACK_DEBIAN_CUDA_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "dtd (= ${PROJECT_VERSION})")
  set(CPACK_COMPONENT_CUDA_DESCRIPTION "Modules of dtd for NVIDIA GPUs")
endif()
include(CPack)
