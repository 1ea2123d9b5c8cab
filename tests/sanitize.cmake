# The runtime again under ThreadSanitizer and under AddressSanitizer with UndefinedBehaviorSanitizer: one sub-build each,
# of the programs that exercise wire, worker, gpu and scheduler only. Each program is one CTest entry.
# `optimise`: for Address- with UndefinedBehaviorSanitizer GCC 12 takes 21 s for unit/gpu/worker_loop_test.cpp at -O1 and 12 at -Og, for
# unit/worker/shaped_test.cpp 292 and 107.
function(ccks_add_sanitized name sanitizers optimise)
  set(programs "")
  foreach(program IN LISTS ARGN)
    if(TARGET ${program})
      list(APPEND programs ${program})
    endif()
  endforeach()
  if(NOT programs)
    return()
  endif()
  set(dir ${PROJECT_BINARY_DIR}/sub/${name})
  string(JOIN " " targets ${programs})
  add_test(NAME ${name}.build COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/sub_build.sh build ${dir} ${PROJECT_SOURCE_DIR} ${targets}
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=${optimise} -g1" -DCCKS_SANITIZE=${sanitizers}
    -DCCKS_SUB_BUILD=ON -DCCKS_PREBUILT_DIR=${PROJECT_BINARY_DIR} -DCCKS_BUILD_TESTS=ON -DCCKS_BUILD_BENCH=OFF -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})
  set_tests_properties(${name}.build PROPERTIES LABELS stress TIMEOUT 2400 PROCESSORS 2 FIXTURES_SETUP ${name} COST 1000)
  foreach(program IN LISTS programs)
    if(program IN_LIST sharded)
      foreach(shard 0 1)
        add_sanitized_run(${name} ${program} .${shard} 1 "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=${shard}")
      endforeach()
    elseif(program IN_LIST single_threaded)
      add_sanitized_run(${name} ${program} "" 1 "${${name}_${program}}")
    else()
      add_sanitized_run(${name} ${program} "" 2 "")
    endif()
  endforeach()
endfunction()

function(add_sanitized_run name program suffix processors environment)
  add_test(NAME ${name}.${program}${suffix}
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/sub_build.sh run ${PROJECT_BINARY_DIR}/sub/${name} ${program})
  set_tests_properties(${name}.${program}${suffix} PROPERTIES LABELS stress TIMEOUT 1200 PROCESSORS ${processors}
    ENVIRONMENT "${environment}" FIXTURES_REQUIRED ${name} SKIP_RETURN_CODE 77 COST 500)
endfunction()

set(single_threaded unit_wire unit_scheduler)  # or nearly so
set(sharded conformance unit_worker)  # which mostly waits for deadlines, or has one thread and takes nine minutes: two halves side by side
set(runtime unit_wire unit_gpu unit_scheduler conformance stress_litmus faults)
set(tsan_unit_scheduler "GTEST_FILTER=-Relays.*:RelayResults.*:ListRecords.*")  # one thread plays all workers there: three minutes in which nothing could race
ccks_add_sanitized(tsan thread -O1 ${runtime})
# The tile ops have no threads of their own, but many addresses. UndefinedBehaviorSanitizer has them in conformance, by host lanes; for unit_worker, which is all of them by
# emulated warps, it would take GCC 12 two and a half times as long as AddressSanitizer alone (unit/worker/shaped_test.cpp 232 s and 84).
ccks_add_sanitized(asan address,undefined -Og ${runtime} unit_worker)
