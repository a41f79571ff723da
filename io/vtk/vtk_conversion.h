// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"
#include "partition/mesh/mesh.h"

#include <vtkLogger.h>
#include <vtkNew.h>
#include <vtkOutputWindow.h>
#include <vtkSmartPointer.h>

#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

class vtkDataObject;

namespace meshard {

/// A guard: collects VTK's messages instead of printing them. VTK has one output window for each process, so that only
/// one guard may exist at a time.
class CapturedMessages {
public:
    CapturedMessages()
        : lock_(mutex()), previous_(vtkOutputWindow::GetInstance()), verbosity_(vtkLogger::GetCurrentVerbosityCutoff())
    {
        vtkOutputWindow::SetInstance(window_);
        vtkLogger::SetStderrVerbosity(vtkLogger::VERBOSITY_OFF);  // the log also prints to the terminal
    }
    ~CapturedMessages()
    {
        vtkLogger::SetStderrVerbosity(verbosity_);
        vtkOutputWindow::SetInstance(previous_);
    }
    CapturedMessages(const CapturedMessages&) = delete;
    CapturedMessages& operator=(const CapturedMessages&) = delete;

    const std::string& errors() const { return window_->errors; }
    const std::vector<std::string>& warnings() const { return window_->warnings; }

private:
    class Window : public vtkOutputWindow {
    public:
        static Window* New() { return new Window; }  // required by vtkNew; no factory may replace it
        void DisplayText(const char*) override {}
        void DisplayErrorText(const char* text) override { errors += text; }
        void DisplayWarningText(const char* text) override { add_if_error(text); }
        void DisplayGenericWarningText(const char* text) override { add_if_error(text); }
        void DisplayDebugText(const char*) override {}

        /// The legacy readers report data that end too early as a warning.
        void add_if_error(const std::string& text)
        {
            if (text.find("Error") != std::string::npos || text.find("mismatch") != std::string::npos)
                errors += text;
            else
                warnings.push_back(text);
        }

        std::string errors;
        std::vector<std::string> warnings;
    };

    static std::mutex& mutex()
    {
        static std::mutex the_mutex;
        return the_mutex;
    }

    std::lock_guard<std::mutex> lock_;
    vtkSmartPointer<vtkOutputWindow> previous_;
    vtkLogger::Verbosity verbosity_;
    vtkNew<Window> window_;
};

/// Extracts what happened from VTK's `ERROR: In file, line n\nvtkReader (0x...): what happened\n\n`.
std::string essence(const std::string& message);

/// Makes a mesh of VTK's data.
/// @param object   null where there are none
/// @throws IoError if they are of another kind, or damaged
Mesh mesh_from_vtk(vtkDataObject* object, const std::string& where);

/// Lets VTK read, and turns what it throws or says into an error. @param read   returns the messages of VTK's errors
/// @throws IoError
template <class Read>
void read_by_vtk(const std::string& where, const Read& read)
{
    std::string errors;
    try {
        errors = read();
    } catch (const std::bad_alloc&) {
        throw IoError("{} announces more data than fits into memory. It is truncated or damaged.", where);
    } catch (const std::length_error&) {
        throw IoError("{} announces more data than can be. It is truncated or damaged.", where);
    }
    if (!errors.empty())
        throw IoError("{} cannot be read; VTK says: {}. It is truncated or damaged.", where, essence(errors));
}

}  // namespace meshard
