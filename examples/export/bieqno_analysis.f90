!> A trained filter of bieqno, used from Fortran through analysis.c. An ensemble is (n, N): variables first, members last.
module bieqno_analysis
  use, intrinsic :: iso_c_binding, only: c_ptr, c_char, c_int, c_int64_t, c_float, c_null_char, c_associated
  implicit none
  private
  public :: filter_open, filter_analyse, filter_close

  interface
    function bieqno_open(path) bind(c) result(filter)
      import :: c_ptr, c_char
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr) :: filter
    end function
    function bieqno_analyse(filter, members, n, m, ensemble, observed, noise) bind(c) result(wrong)
      import :: c_ptr, c_int, c_int64_t, c_float
      type(c_ptr), value :: filter
      integer(c_int64_t), value :: members, n, m
      real(c_float), intent(inout) :: ensemble(*)
      real(c_float), intent(in) :: observed(*), noise(*)
      integer(c_int) :: wrong
    end function
    subroutine bieqno_close(filter) bind(c)
      import :: c_ptr
      type(c_ptr), value :: filter
    end subroutine
  end interface

contains

  !> Read a file that `bieqno export --format onnx` wrote.
  function filter_open(path) result(filter)
    character(*), intent(in) :: path
    type(c_ptr) :: filter
    filter = bieqno_open(path // c_null_char)
    if (.not. c_associated(filter)) error stop "bieqno: the filter cannot be read"
  end function

  !> Analyse an ensemble (n, N) in place, with as many standard normal numbers; NaN marks a missing observation.
  subroutine filter_analyse(filter, ensemble, observed, noise)
    type(c_ptr), intent(in) :: filter
    real(c_float), intent(inout), contiguous :: ensemble(:, :)
    real(c_float), intent(in), contiguous :: observed(:), noise(:, :)
    if (any(shape(noise) /= shape(ensemble))) error stop "bieqno: the noise has the shape of the ensemble"
    if (bieqno_analyse(filter, size(ensemble, 2, c_int64_t), size(ensemble, 1, c_int64_t), size(observed, 1, c_int64_t), &
                       ensemble, observed, noise) /= 0) error stop "bieqno: the analysis failed"
  end subroutine

  subroutine filter_close(filter)
    type(c_ptr), intent(in) :: filter
    call bieqno_close(filter)
  end subroutine
end module
