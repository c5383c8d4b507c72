# llama.cpp's library from the sources that this project pins (LLAMA_DIR), for the programs of the folders beside this file. Its ggml is
# shared, so that a program can load the backend library that scripts/backend.sh builds: both projects then run the same kernels.
set(CMAKE_CXX_STANDARD 17)
set(BUILD_SHARED_LIBS ON)
set(LLAMA_BUILD_COMMON OFF)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_OPENSSL OFF)
add_subdirectory(${LLAMA_DIR} llama)

# A program of one file, which finds llama_program.h.
function(add_llama_program name file)
  add_executable(${name} ${file})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  target_link_libraries(${name} PRIVATE llama ggml)
endfunction()
