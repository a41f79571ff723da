# Runs PROGRAM with ARGUMENTS: it must end with exit code 0 and print what the regular expression EXPECTED matches.
execute_process(COMMAND ${PROGRAM} ${ARGUMENTS} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
message("${output}${errors}")
if(NOT code EQUAL 0)
  message(FATAL_ERROR "exit code ${code}, expected 0")
endif()
if(NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "expected a match of ${EXPECTED}")
endif()
