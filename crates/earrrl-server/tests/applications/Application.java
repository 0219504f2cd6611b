import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import java.io.IOException;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;

/** Tomcat, with encoded slashes and backslashes as operators allow them: java Application.java PORT FOLDER */
public class Application {
    public static void main(String[] arguments) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(arguments[1]);
        tomcat.setPort(Integer.parseInt(arguments[0]));
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        tomcat.getConnector().setEncodedSolidusHandling("decode");
        tomcat.getConnector().setAllowBackslash(true);
        Context context = tomcat.addContext("", new File(arguments[1]).getAbsolutePath());
        Tomcat.addServlet(context, "login", new HttpServlet() {
            @Override
            protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
                response.getWriter().print("REACHED");
            }
        });
        context.addServletMappingDecoded("/v1/login", "login");
        tomcat.start();
        tomcat.getServer().await();
    }
}
